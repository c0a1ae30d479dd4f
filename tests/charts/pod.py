"""One container of a rendered Pod, started as a kubelet would start it, without a kubelet: its command, arguments and environment, its
volumes at their paths, a read-only root, its user and group, no capabilities, no new privileges. Needs root and Linux's mount namespaces.

ConfigMaps and Secrets are laid out as a kubelet does it, behind a link `..data` that is swapped when they change.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.charts.helm import ROOT, Document

SWEPT: Final = ("/etc", "/var/lib", "/run")
"""Folders of this machine that volumes are mounted below: the container sees a writable copy's skeleton with the mount points."""


class Kubelet:
    """The volumes of one Pod below `folder`.

    Args:
        secrets: the values of existing Secrets, by Secret and key.
    """

    def __init__(self, folder: Path, documents: list[Document], pod: Document, secrets: Mapping[str, Mapping[str, str]]) -> None:
        self.folder = folder
        self.pod = pod
        self._maps = {d["metadata"]["name"]: d["data"] for d in documents if d["kind"] == "ConfigMap"}
        self._secrets = secrets
        self._generation = 0
        security = pod["securityContext"]
        self.uid, self.gid, self.fs_group = security["runAsUser"], security["runAsGroup"], security["fsGroup"]
        self.volumes: dict[str, Path] = {}

    def volume(self, name: str) -> Path:
        """The folder of a volume, made and filled at its first use."""
        if name not in self.volumes:
            place = self.volumes[name] = self.folder / "volumes" / name
            place.mkdir(parents=True)
            os.chown(place, 0, self.fs_group)
            place.chmod(0o2777)
            given = next((v for v in self.pod.get("volumes", []) if v["name"] == name), {})  # none: the claim of a StatefulSet
            if "configMap" in given:
                self.fill(name, self._maps[given["configMap"]["name"]])
            elif "secret" in given:
                self.fill(name, dict(self._secrets[given["secret"]["secretName"]]), 0o440)
            elif "projected" in given:
                sources = [source["secret"] for source in given["projected"]["sources"]]
                self.fill(name, {i["path"]: self._secrets[s["name"]][i["key"]] for s in sources for i in s["items"]}, 0o440)
        return self.volumes[name]

    def fill(self, name: str, files: Mapping[str, str], mode: int = 0o644) -> None:
        """Swap the content of a ConfigMap's or a Secret's folder."""
        place = self.volumes[name]
        self._generation += 1
        version = place / f"..{self._generation:04d}"
        version.mkdir()
        for file, text in files.items():
            (version / file).write_text(text)
            (version / file).chmod(mode)
            os.chown(version / file, 0, self.fs_group)
            link = place / file
            if not link.is_symlink():
                link.symlink_to(f"..data/{file}")
        data = place / "..data"
        old = data.readlink() if data.is_symlink() else None
        (place / "..data_tmp").symlink_to(version.name)
        (place / "..data_tmp").rename(data)
        for link in place.iterdir():
            if not link.name.startswith("..") and not link.exists():
                link.unlink()
        if old is not None:
            shutil.rmtree(place / old)

    def environment(self, container: Document) -> dict[str, str]:
        """The container's variables, with those of Secrets, and `$(NAME)` expanded."""
        variables: dict[str, str] = {}
        for entry in container.get("env", []):
            if "valueFrom" in entry:
                reference = entry["valueFrom"]["secretKeyRef"]
                variables[entry["name"]] = self._secrets[reference["name"]][reference["key"]]
            else:
                variables[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda m: variables.get(m[1], m[0]), entry["value"])
        return variables

    def command(self, container: Document, programs: Mapping[str, str]) -> list[str]:
        """The command line for this machine: a shell makes the mounts, then becomes the container's program.

        Args:
            programs: where a program of the image is on this machine.
        """
        program, *arguments = [*container["command"], *container.get("args", [])]
        checkout = self.folder / "checkout"
        checkout.mkdir(exist_ok=True)
        script = ["set -e", f"mount --bind {ROOT} {checkout}"]
        for top in SWEPT:
            copy = self.folder / "root" / top.strip("/").replace("/", "-")
            copy.mkdir(parents=True, exist_ok=True)
            if top == "/etc":
                script.append(f"cp -a /etc/. {copy}/")
            for mount in container["volumeMounts"]:
                if mount["mountPath"].startswith(f"{top}/"):
                    (copy / mount["mountPath"].removeprefix(f"{top}/")).mkdir(parents=True, exist_ok=True)
            script.append(f"mount --bind {copy} {top}")
        home, python = Path.home(), Path(sys.base_prefix)
        if python.is_relative_to(home) and not home.stat().st_mode & 0o001:
            # another user has to reach the interpreter, not the rest of this one's home
            kept = self.folder / "python"
            kept.mkdir(exist_ok=True)
            script += [f"mount --bind {python} {kept}", f"mount -t tmpfs -o mode=755 tmpfs {home}", f"mkdir -p {python}"]
            script.append(f"mount --bind {kept} {python}")
            if ROOT.is_relative_to(home):
                script += [f"mkdir -p {ROOT}", f"mount --bind {checkout} {ROOT}"]
            script.append(f"mount -o remount,bind,ro {home}")
        for mount in sorted(container["volumeMounts"], key=lambda mount: ROOT.is_relative_to(mount["mountPath"])):
            hides = ROOT.is_relative_to(mount["mountPath"])
            within = self.volume(mount["name"]) / str(ROOT.relative_to(mount["mountPath"])) if hides else None
            if within is not None:  # the checkout lies where the container has a volume, below /tmp: it is mounted there again
                within.mkdir(parents=True, exist_ok=True)
                script.append(f"mount --bind {checkout} {within}")
            script.append(f"mount --rbind {self.volume(mount['name'])} {mount['mountPath']}")
            if mount.get("readOnly"):
                script.append(f"mount -o remount,bind,ro {mount['mountPath']}")
        script += [f"mount -o remount,bind,ro {top}" for top in SWEPT]
        script.append("mount -o remount,bind,ro /")
        words = ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", f"--groups={self.fs_group}", "--no-new-privs"]
        words += ["--bounding-set=-all", "--inh-caps=-all", programs.get(program, program), *arguments]
        script.append("cd / && exec " + shlex.join(words))
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(script)]

    def start(self, container: Document, programs: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
        """The container's process. stdout and stderr go to `log`."""
        environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **self.environment(container)}
        with log.open("wb") as out:
            return subprocess.Popen(self.command(container, programs), env=environment, stdout=out, stderr=out, cwd=ROOT)
