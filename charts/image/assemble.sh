#!/usr/bin/env bash
# Assembles the image's file tree in /rootfs, inside of the build stage of the Dockerfile beside this file.
# OFFLINE: not empty for no package index, only what lies in /build/dist. SOURCE_DATE_EPOCH: the time of every file.
set -euo pipefail
export PYTHONHASHSEED=0 LC_ALL=C.UTF-8

# Python and what it and compiled packages load; everything else of the base stays behind
PACKAGES=(base-files ca-certificates libbz2-1.0 libc6 libcrypt1 libdb5.3 libexpat1 libffi8 libgcc-s1 libgssapi-krb5-2 libcom-err2
  libk5crypto3 libkeyutils1 libkrb5-3 libkrb5support0 liblzma5 libncursesw6 libnsl2 libpython3-stdlib libpython3.11-minimal
  libpython3.11-stdlib libreadline8 libsqlite3-0 libssl3 libstdc++6 libtinfo6 libtirpc3 libuuid1 media-types netbase python3
  python3-minimal python3.11 python3.11-minimal readline-common tzdata zlib1g)

echo "the virtual environment"
python3 -m venv /build/pip
python3 -m venv --without-pip /opt/tidegate
install=(/build/pip/bin/pip --python /opt/tidegate/bin/python install --quiet --disable-pip-version-check --no-cache-dir --no-compile)
"${install[@]}" --only-binary :all: ${OFFLINE:+--no-index} --find-links /build/dist/wheels --require-hashes -r /build/requirements-image.lock
"${install[@]}" --no-index --no-deps --find-links /build/dist tidegate

echo "the files of ${#PACKAGES[@]} packages of Debian"
mkdir -p /rootfs/usr/{bin,lib,lib64,sbin} /rootfs/{dev,etc/ssl/certs,etc/tidegate,opt,proc,run,sys,tmp,var/lib/dpkg/status.d} /state
chmod 1777 /rootfs/tmp
for folder in bin lib lib64 sbin; do ln -s "usr/$folder" "/rootfs/$folder"; done
for package in "${PACKAGES[@]}"; do
  dpkg-query --status "$package" > "/rootfs/var/lib/dpkg/status.d/$package"
  dpkg-query --listfiles "$package"
done | sort -u | grep -vE '^/usr/share/(man|locale|info|lintian|bug|pixmaps|applications|doc-base)/' | grep -vE '^/usr/share/doc/.*/(changelog|NEWS|README)' \
  | while read -r path; do if [[ ! -d "$path" && -e "$path" ]]; then echo "${path#/}"; fi; done > /build/files
tar -C / -cf - -T /build/files | tar -C /rootfs --keep-directory-symlink -xf -
cp /etc/ssl/certs/ca-certificates.crt /rootfs/etc/ssl/certs/
cp -a /opt/tidegate /rootfs/opt/
echo 'root:x:0:0:root:/:/nonexistent
tidegate:x:65532:65532:tidegate:/var/lib/tidegate:/nonexistent' > /rootfs/etc/passwd
echo 'root:x:0:
tidegate:x:65532:' > /rootfs/etc/group
echo 'hosts: files dns' > /rootfs/etc/nsswitch.conf
ldconfig -r /rootfs
rm -f /rootfs/var/cache/ldconfig/aux-cache

echo "byte code, which does not name the time of its source: nothing can write it later, the root is read-only"
python3 -m compileall -q -f --invalidation-mode unchecked-hash -s /rootfs -p / /rootfs/usr/lib/python3.11 /rootfs/opt/tidegate/lib > /build/compiled || cat /build/compiled
find /rootfs /state -newermt "@$SOURCE_DATE_EPOCH" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
