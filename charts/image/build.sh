#!/usr/bin/env bash
# Builds the gateway's image as an OCI layout, without a daemon and without a registry of images: `make image`.
#
#   build.sh FOLDER    the folder that gets the image; a list of its parts (SBOM) goes to FOLDER.spdx.json
#
# It needs root (a chroot and a file tree with owners) and Debian's packages buildah, skopeo and debootstrap, and the folder dist with the
# wheel (`make dist`). The base is a minimal Debian that debootstrap makes from the archive of this machine's apt; it is kept in
# .cache/image for the next time. Wheels are downloaded by this machine's pip before, so that the build itself asks no index.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
work=$PWD/.cache/image
python=.venv/bin/python
tools=.venv-image/bin
: "${SOURCE_DATE_EPOCH:?is not set; run make image, which sets it to the time of the commit}"

[[ $(id -u) == 0 ]] || { echo "building the image needs root: run make image as root, or build charts/image/Dockerfile with a builder of your own" >&2; exit 1; }
for tool in buildah skopeo debootstrap; do
  command -v "$tool" > /dev/null && continue
  command -v apt-get > /dev/null || { echo "$tool is missing; install it" >&2; exit 1; }
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -qq -y --no-install-recommends buildah skopeo debootstrap > /dev/null
  break
done
compgen -G "dist/*.whl" > /dev/null || { echo "there is no wheel in dist; run make dist" >&2; exit 1; }

"$tools/hadolint" charts/image/Dockerfile

mkdir -p "$work" dist/wheels
if [[ ! -f $work/base.tar ]]; then
  echo "the base: a minimal Debian"
  archive=$(apt-cache policy base-files | grep -oE 'https?://[^ ]+' | head -1)
  rm -rf "$work/base"
  debootstrap --variant=minbase --include=ca-certificates,netbase,python3,python3-venv,tzdata bookworm "$work/base" "$archive" > "$work/debootstrap.log" \
    || { tail -5 "$work/debootstrap.log" >&2; exit 1; }
  tar -C "$work/base" --sort=name -cf "$work/base.tar.new" .
  mv "$work/base.tar.new" "$work/base.tar"
  rm -rf "$work/base"
fi

echo "the wheels"
# the base's Python may be an older 3.11 than this one, so what only such a one needs is taken along
sed -E "s/ ; python_full_version < '3\.11\.[^\\]*/ /" requirements-image.lock > "$work/requirements.lock"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r "$work/requirements.lock" -d dist/wheels

echo '{"default": [{"type": "insecureAcceptAnything"}]}' > "$work/policy.json"
store=(--root "$work/storage" --runroot "$work/run" --storage-driver vfs --signature-policy "$work/policy.json")
rm -rf "$work/storage" "$work/run" "$out"
mkdir -p "$(dirname "$out")"
base=$(buildah "${store[@]}" from scratch)
buildah "${store[@]}" add --quiet "$base" "$work/base.tar" / > /dev/null
buildah "${store[@]}" commit --quiet --rm "$base" localhost/tidegate-base > /dev/null
echo "the image"
buildah "${store[@]}" bud --isolation chroot --timestamp "$SOURCE_DATE_EPOCH" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" \
  --build-arg BASE=localhost/tidegate-base --build-arg OFFLINE=1 --build-arg "REVISION=$(git rev-parse HEAD 2> /dev/null || true)" \
  -f charts/image/Dockerfile -t localhost/tidegate . > "$work/build.log" 2>&1 || { tail -20 "$work/build.log" >&2; exit 1; }
buildah "${store[@]}" push --quiet localhost/tidegate "oci:$out:tidegate"
rm -rf "$work/storage" "$work/run"

"$tools/syft" scan "oci-dir:$out" --quiet --output "spdx-json=$out.spdx.json"
skopeo inspect "oci:$out:tidegate" > "$out.json"
echo "$out: $(du -sm "$out" | cut -f1) MB, $(grep -o "\"SPDXID\": *\"SPDXRef-Package" "$out.spdx.json" | wc -l) parts in $(basename "$out").spdx.json"
