import msgspec
import pytest
import yaml
from pydantic import JsonValue

from backends.discovery.kubernetes import watch
from backends.launch.catalogue import load, names
from backends.launch.kubernetes import LEAVING_S, MAX_LABEL, REVISION_LABEL, kubernetes
from backends.launch.manifest import manifest_for
from backends.launch.resolve import Launch, LaunchError, resolve


def launched(name: str, given: dict[str, JsonValue]) -> Launch:
    config = load(name)
    return resolve(config, manifest_for(config.engine, config.version), given)


@pytest.mark.parametrize("name", names())
def test_a_pod_runs_the_command_may_drain_and_is_seen_one_by_one(name: str) -> None:
    launch = launched(name, {"host": "0.0.0.0", "model": "/models/m", "served_name": "a$(B)c"})
    deployment, service = yaml.safe_load_all(kubernetes(launch))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words = [word.replace("$$(", "$(") for word in (*container["command"], *container["args"])]
    assert tuple(words) == launch.image_command
    assert any("a$$(B)c" in word for word in container["args"])
    given = {one["name"]: one.get("value", "127.0.0.1") for one in container["env"]}
    assert given == launch.environment
    assert pod["terminationGracePeriodSeconds"] == launch.stop_s + LEAVING_S
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", str(LEAVING_S)]
    assert container["resources"]["limits"].get("nvidia.com/gpu", 0) == launch.config.hardware.gpus
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= launch.config.ready_s
    assert {probe["httpGet"]["path"] for probe in (probe, container["readinessProbe"], container["livenessProbe"])} == {"/health"}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["clusterIP"] == "None"
    assert [one["targetPort"] for one in service["spec"]["ports"]] == [one["name"] for one in container["ports"]]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}


def test_other_pods_find_a_prefill_engine_at_its_pods_address() -> None:
    (deployment, _) = yaml.safe_load_all(kubernetes(launched("vllm-pd-prefill", {"host": "0.0.0.0"})))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (host,) = [one for one in container["env"] if one["name"].endswith("CHANNEL_HOST")]
    assert host["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_a_relative_model_is_refused() -> None:
    with pytest.raises(LaunchError, match="absolute path"):
        kubernetes(launched("vllm-cpu-test", {"host": "0.0.0.0"}))


def test_the_pods_of_a_revision_have_its_label_and_the_selector_has_not() -> None:
    launch = launched("vllm-8b", {"host": "0.0.0.0", "model": "/models/tide"})
    for revision, said in (("v2", "v2"), ("r" * 64, None), ("", None)):
        (deployment, _) = yaml.safe_load_all(kubernetes(msgspec.structs.replace(launch, revision=revision)))
        assert deployment["spec"]["template"]["metadata"]["labels"].get("tidegate/revision") == said
        assert "tidegate/revision" not in deployment["spec"]["selector"]["matchLabels"]
    assert (REVISION_LABEL, MAX_LABEL) == (watch.REVISION_LABEL, watch.MAX_LABEL), "discovery reads it"
