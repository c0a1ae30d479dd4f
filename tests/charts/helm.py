"""The real helm, and judges of what it renders: Kubernetes' own schemas by kubernetes-validate, those of CustomResourceDefinitions by
jsonschema (`crds/`, see `crds/SOURCES.txt`), and KEDA's (release 2.16) by the models that cloudcoil-models-keda makes of them."""

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from jsonschema import Draft202012Validator

ROOT: Final = Path(__file__).parents[2]
CHARTS: Final = ROOT / "charts"
BIN: Final = ROOT / ".venv-charts" / "bin"
KUBERNETES: Final = ("1.32", "1.37")
"""Releases whose schemas the manifests meet: the oldest that the charts take without a feature gate, and the newest there is."""
VALIDATE: Final = """
import json, sys
from jsonschema import Draft202012Validator

def strict(schema):
    if isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for part in schema.values():
            strict(part)
    elif isinstance(schema, list):
        for part in schema:
            strict(part)
    return schema

found = []
documents = json.load(sys.stdin)
keda = [document for document in documents if document["apiVersion"].startswith("keda.sh/")]
documents = [document for document in documents if document not in keda]
if keda:
    from cloudcoil.models.keda import v1alpha1
if documents:
    import kubernetes_validate
for document in keda:
    schema = strict(getattr(v1alpha1, document["kind"]).model_json_schema(by_alias=True))
    for error in Draft202012Validator(schema).iter_errors(document):
        found.append(f"{document['kind']} {document['metadata']['name']}: {error.json_path}: {error.message}")
for version in sys.argv[1:]:
    for document in documents:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{version} {document['kind']} {document['metadata']['name']}: {list(error.path)}: {error.message}")
print(json.dumps(found))
"""

Document = dict[str, Any]


def helm(*arguments: str, values: str = "") -> subprocess.CompletedProcess[str]:
    """One run of helm, with `values` as a values file on stdin where there are any."""
    extra = ("--values", "-") if values else ()
    return subprocess.run([BIN / "helm", *arguments, *extra], input=values, capture_output=True, text=True, timeout=60, check=False)


def example(chart: str, name: str) -> Path:
    return CHARTS / chart / "values" / f"{name}.yaml"


def examples(chart: str) -> list[str]:
    return sorted(file.stem for file in (CHARTS / chart / "values").glob("*.yaml"))


@cache
def template(chart: str, file: Path | None, values: str, *more: str, release: str = "") -> subprocess.CompletedProcess[str]:
    files = ("--values", str(file)) if file else ()
    return helm("template", release or chart, str(CHARTS / chart), "--namespace", "llm", *files, *more, values=values)


def rendered(chart: str, name: str = "", **values: Any) -> list[Document]:
    """The manifests of a chart with one of its example values (its own defaults without `name`) and further values over them."""
    done = template(chart, example(chart, name) if name else None, yaml.safe_dump(values) if values else "")
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def refusal(chart: str, name: str = "", **values: Any) -> str:
    """What helm says where it refuses."""
    done = template(chart, example(chart, name) if name else None, yaml.safe_dump(values) if values else "")
    assert done.returncode != 0, "helm takes these values"
    return done.stderr


def of(documents: list[Document], kind: str, name: str = "") -> Document:
    found = [d for d in documents if d["kind"] == kind and name in ("", d["metadata"]["name"])]
    assert len(found) == 1, [d["metadata"]["name"] for d in found]
    return found[0]


def pods(documents: list[Document]) -> dict[str, Document]:
    """The specifications of all Pods, by kind and name of what makes them."""
    return {
        f"{d['kind']}/{d['metadata']['name']}": d["spec"]["template"]["spec"]
        for d in documents
        if d["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job")
    }


def containers(pod: Document) -> list[Document]:
    return [*pod.get("initContainers", []), *pod["containers"]]


@cache
def crd(kind: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((Path(__file__).parent / "crds" / f"{kind}.json").read_text()))


def problems(documents: list[Document]) -> list[str]:
    """What the schemas object to; CustomResourceDefinitions without a schema here are objected to as well."""
    own = [d for d in documents if "." not in d["apiVersion"].split("/")[0] or d["apiVersion"].split("/")[0].endswith("k8s.io")]
    own = [d for d in own if not d["apiVersion"].startswith("gateway.networking.k8s.io")]
    own += [d for d in documents if d["apiVersion"].startswith("keda.sh/")]
    done = subprocess.run(
        [BIN / "python", "-c", VALIDATE, *KUBERNETES], input=json.dumps(own), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    for document in documents:
        if document not in own:
            errors = crd(document["kind"]).iter_errors(document)
            found += [f"{document['kind']} {document['metadata']['name']}: {error.json_path}: {error.message}" for error in errors]
    return found
