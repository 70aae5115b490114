"""Exports for dynamic resource allocation and for KAI: a good one passes the types, wrong ones are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.base.system.errors import ConfigError
from pipeline.planner.deployment import Gpu, Plan
from pipeline.planner.export import kai
from tests.support import dra_schema
from tests.support.json_schema import violations
from tests.unit.planner.export.test_export import H100, WHOLE, divided, export, instance, plan_of, schema

IMAGE = ("--image", "registry/any:1")
NAIVE_PAIR = Gpu(
    model=H100,
    mode="naive",
    instances=(
        instance(None, None, "infer_tiny", 10.0, memory_mib=20000.5),
        instance(None, None, "infer_tiny_text", 5.0, memory_mib=30000.0),
    ),
)
MPS_PAIR = Gpu(
    model=H100,
    mode="mps",
    instances=(
        instance(None, None, "infer_tiny", 10.0, share_pct=33.5, memory_mib=20000.0),
        instance(None, None, "infer_tiny_text", 5.0, share_pct=60.0, memory_mib=30000.0),
    ),
)


def exported(tmp_path: Path, capsys: Any, plan: Plan, kind: str, *options: str) -> list[Any]:
    assert export(tmp_path, plan, kind, *IMAGE, *options) == 0
    manifests = list(yaml.safe_load_all(capsys.readouterr().out))
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            assert [*violations(manifest, schema("kubernetes_deployment_v1"))] == []
    for template, workload in zip(manifests[::2], manifests[1::2], strict=True) if kind == "dra" else ():
        record = dra_schema.check_template(template, "template")
        dra_schema.check_pod(workload["spec"]["template"]["spec"], record, "pod")
    return manifests


def test_the_instances_of_a_gpu_are_one_claim_with_one_parent(tmp_path: Path, capsys) -> None:
    template, workload = exported(tmp_path, capsys, plan_of(divided(), divided()), "dra")
    devices = template["spec"]["spec"]["devices"]
    expressions = [each["exactly"]["selectors"][0]["cel"]["expression"] for each in devices["requests"]]
    # The driver's attributes of a device; an H800 is an H100 with the same profiles.
    assert expressions[1] == (
        "device.attributes['gpu.nvidia.com'].profile == '2g.20gb' && "
        "device.attributes['gpu.nvidia.com'].productName in ['NVIDIA H100 80GB HBM3', 'NVIDIA H800']"
    )
    assert devices["constraints"] == [{"requests": [], "matchAttribute": "gpu.nvidia.com/parentUUID"}]
    (config,) = devices["config"]  # only the first instance has several processes
    assert config["requests"] == ["mig-0"]
    assert config["opaque"]["parameters"] == {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "MigDeviceConfig",
        "sharing": {"strategy": "MPS", "mpsConfig": {}},
    }
    spec = workload["spec"]["template"]["spec"]
    assert workload["spec"]["replicas"] == 2
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": template["metadata"]["name"]}]
    assert [(each["name"], each["resources"]["claims"][0]["request"]) for each in spec["containers"]] == [
        ("infer-tiny", "mig-0"),
        ("infer-tiny-text", "mig-1"),
        ("infer-tiny-2", "mig-2"),
    ]


def test_services_that_share_a_gpu_have_one_claim_with_mps_or_time_slices(tmp_path: Path, capsys) -> None:
    plan = plan_of(MPS_PAIR, NAIVE_PAIR)
    manifests = exported(tmp_path, capsys, plan, "dra", "--time-slice", "Short")
    sharing = [
        manifest["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]["sharing"]
        for manifest in manifests[::2]
    ]
    # One percentage limits all clients; the variable of each container limits it further.
    assert sharing[0] == {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 60}}
    assert sharing[1] == {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}
    containers = manifests[1]["spec"]["template"]["spec"]["containers"]
    shares = [{entry["name"]: entry["value"] for entry in each["env"]} for each in containers]
    assert [each["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for each in shares] == ["33.5", "60"]
    assert {each["resources"]["claims"][0]["request"] for each in containers} == {"gpu"}
    alone = Gpu(model=H100, mode="naive", instances=(instance(None, None, "infer_tiny", 1.0),))
    template, _ = exported(tmp_path, capsys, plan_of(alone), "dra")
    assert template["spec"]["spec"]["devices"].keys() == {"requests"}


def good(tmp_path: Path, capsys: Any, *gpus: Gpu) -> Any:
    return exported(tmp_path, capsys, plan_of(*gpus), "dra")[0]


def parameters(template: Any) -> Any:
    return template["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]


def change_profile(old: str, new: str) -> Callable[[Any], None]:
    def change(template: Any) -> None:
        for request in template["spec"]["spec"]["devices"]["requests"]:
            cel = request["exactly"]["selectors"][0]["cel"]
            cel["expression"] = cel["expression"].replace(old, new)

    return change


def change_sharing(**changes: Any) -> Callable[[Any], None]:
    return lambda template: parameters(template)["sharing"].update(changes)


def change_devices(**changes: Any) -> Callable[[Any], None]:
    return lambda template: template["spec"]["spec"]["devices"].update(changes)


SLICES = {"interval": "Short"}
WRONG_TEMPLATES: list[tuple[Callable[[Any], Any], str]] = [
    (change_profile("2g.20gb", "2g.10gb"), "requests[1]: NVIDIA H100 80GB HBM3 has no MIG profile '2g.10gb'"),
    (change_profile("2g.20gb", "4g.40gb"), "requests: [3g.40gb,4g.40gb,1g.10gb] does not fit on NVIDIA H100"),
    (change_sharing(mpsConfig={"defaultActiveThreadPercentage": 120}), "must be at most 100, not 120"),
    (change_sharing(mpsConfig={"defaultActiveThreadPercentage": -1}), "must be finite and not negative"),
    (change_sharing(mpsConfig={"defaultActiveThreadPercentage": "50"}), "must be a whole number, not"),
    (change_sharing(mpsConfig={"defaultPinnedDeviceMemoryLimit": "1Ki"}), "memory limit '1Ki' is not at least 1Mi"),
    (change_sharing(mpsConfig={"defaultPinnedDeviceMemoryLimit": "10GB"}), "memory limit '10GB'"),
    (change_sharing(mpsconfig={}), "unknown key 'mpsconfig'"),
    (change_sharing(strategy="Mps"), "strategy must be one of MPS, TimeSlicing"),
    (change_sharing(timeSlicingConfig=SLICES), "timeSlicingConfig: does not apply to strategy MPS"),
    (change_sharing(strategy="TimeSlicing"), "mpsConfig: does not apply to strategy TimeSlicing"),
    (
        change_sharing(strategy="TimeSlicing", mpsConfig=None, timeSlicingConfig=SLICES),
        "MigDeviceConfig has no such field",
    ),
    (change_sharing(timeSlicingConfig={"interval": "Shortest"}), "interval must be one of Default, Short, Medium"),
    (lambda template: parameters(template).update(kind="GpuConfig"), "GpuConfig is for devices of gpu.nvidia.com only"),
    (lambda template: parameters(template).update(apiVersion="v1"), "must be one of resource.nvidia.com/v1beta1"),
    (lambda template: template.update(apiVersion="resource.k8s.io/v1beta1"), "must be one of resource.k8s.io/v1"),
    (
        change_devices(constraints=[{"matchAttribute": "gpu.nvidia.com/uuid"}]),
        "matchAttribute: must be gpu.nvidia.com/parentUUID",
    ),
    (
        change_devices(constraints=[{"matchAttribute": dra_schema.SAME_GPU, "requests": ["gpu"]}]),
        "no request is called",
    ),
    (change_devices(requests=[]), "must be 1 to 32 requests"),
    (lambda template: template["metadata"].update(name="My_Plan"), "metadata.name: must have only a-z"),
]


@pytest.mark.parametrize(("change", "problem"), WRONG_TEMPLATES)
def test_a_wrong_claim_template_is_refused(tmp_path: Path, capsys, change: Callable[[Any], None], problem: str) -> None:
    template = copy.deepcopy(good(tmp_path, capsys, divided()))
    dra_schema.check_template(template, "t")
    change(template)
    with pytest.raises(ConfigError) as caught:
        dra_schema.check_template(template, "t")
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_a_request_of_another_class_or_without_a_user_is_refused(tmp_path: Path, capsys) -> None:
    template, workload = exported(tmp_path, capsys, plan_of(divided()), "dra")
    spec = workload["spec"]["template"]["spec"]
    record = dra_schema.check_template(template, "t")
    dra_schema.check_pod(spec, record, "t")
    wrong = copy.deepcopy(template)
    wrong["spec"]["spec"]["devices"].pop("config")
    wrong["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "gpu.nvidia.com"
    with pytest.raises(ConfigError, match=r"requests\[0\]: a request of mig.nvidia.com, and no other, selects"):
        dra_schema.check_template(wrong, "t")
    with pytest.raises(ConfigError, match="containers use the requests mig-0, mig-1, the template has mig-0, mig-1, m"):
        dra_schema.check_pod(spec | {"containers": spec["containers"][:2]}, record, "t")
    with pytest.raises(ConfigError, match="uses claim gpu, which is not in resourceClaims"):
        dra_schema.check_pod(spec | {"resourceClaims": []}, record, "t")


@pytest.fixture
def reads() -> Callable[[Any], bool]:
    """Return whether the models of Kubernetes's own client have every field of a manifest, and take its values."""
    client = pytest.importorskip("kubernetes", reason="the kubernetes package is not installed").client
    if not hasattr(client, "V1ResourceClaimTemplate"):
        pytest.skip("this kubernetes package is older than resource.k8s.io/v1")
    api = client.ApiClient()

    def read(manifest: Any) -> bool:
        try:
            record = api._ApiClient__deserialize(manifest, getattr(client, f"V1{manifest['kind']}"))
        except ValueError:  # a field is missing or has a value of another type
            return False
        return bool(api.sanitize_for_serialization(record) == manifest)

    return read


@pytest.mark.parametrize(
    ("kind", "gpus"),
    [
        ("dra", (divided(), MPS_PAIR, NAIVE_PAIR)),
        ("kai", (divided(), WHOLE, NAIVE_PAIR)),
        ("kubernetes", (divided(), WHOLE)),
    ],
)
def test_the_client_of_kubernetes_reads_every_field(
    tmp_path: Path, capsys, reads: Callable[[Any], bool], kind: str, gpus: Sequence[Gpu]
) -> None:
    for gpu in gpus:
        assert all(map(reads, exported(tmp_path, capsys, plan_of(gpu), kind)))


def devices_of(template: Any) -> Any:
    return template["spec"]["spec"]["devices"]


def pod_of(workload: Any) -> Any:
    return workload["spec"]["template"]["spec"]


UNPUBLISHED: list[Callable[[Any, Any], Any]] = [
    lambda template, workload: devices_of(template).update(request=[]),
    lambda template, workload: devices_of(template)["requests"][0].pop("name"),
    lambda template, workload: devices_of(template)["requests"][0].update(deviceClassName=dra_schema.MIG_CLASS),
    lambda template, workload: devices_of(template)["constraints"][0].update(matchAttributes="a/b"),
    lambda template, workload: devices_of(template)["config"][0]["opaque"].pop("driver"),
    lambda template, workload: workload["spec"].update(replicas="two"),
    lambda template, workload: workload["spec"].pop("selector"),
    lambda template, workload: pod_of(workload).update(resourceClaim=[]),
    lambda template, workload: pod_of(workload)["containers"][0].pop("name"),
    lambda template, workload: pod_of(workload)["containers"][0].update(resource={}),
]


@pytest.mark.parametrize("change", UNPUBLISHED)
def test_the_client_of_kubernetes_does_not_read_wrong_fields(
    tmp_path: Path, capsys, reads: Callable[[Any], bool], change: Callable[[Any, Any], Any]
) -> None:
    manifests = exported(tmp_path, capsys, plan_of(divided()), "dra")
    change(*manifests)
    assert not all(map(reads, manifests))


def test_kai_requests_instances_gpus_and_parts_of_gpus(tmp_path: Path, capsys) -> None:
    plan = plan_of(divided(), WHOLE, NAIVE_PAIR)
    manifests = exported(tmp_path, capsys, plan, "kai", "--queue", "team")
    templates = [manifest["spec"]["template"] for manifest in manifests]
    assert {template["metadata"]["labels"]["kai.scheduler/queue"] for template in templates} == {"team"}
    requests = [
        template["spec"]["containers"][0].get("resources", {}).get("limits") or template["metadata"]["annotations"]
        for template in templates
    ]
    assert requests == [
        {"nvidia.com/mig-3g.40gb": "1"},
        {"nvidia.com/mig-2g.20gb": "1"},
        {"nvidia.com/mig-1g.10gb": "1"},
        {"nvidia.com/gpu": "1"},
        {"gpu-memory": "20001"},
        {"gpu-memory": "30000"},
    ]
    by_fraction = exported(tmp_path, capsys, plan_of(NAIVE_PAIR), "kai", "--share-by", "fraction")
    assert [manifest["spec"]["template"]["metadata"]["annotations"] for manifest in by_fraction] == [
        {"gpu-fraction": "0.246"},  # 20000.5 of 81559 MiB
        {"gpu-fraction": "0.368"},
    ]
    unlimited = [instance(None, None, name, 1.0, memory_mib=9.0) for name in ("infer_tiny", "infer_tiny_text")]
    (first, _) = exported(tmp_path, capsys, plan_of(Gpu(model=H100, mode="mps", instances=tuple(unlimited))), "kai")
    spec = first["spec"]["template"]["spec"]
    assert spec["volumes"][0]["hostPath"]["path"] == spec["containers"][0]["volumeMounts"][0]["mountPath"]


def part(**changes: Any) -> Callable[[Any], None]:
    return lambda template: template["metadata"].update(annotations={**changes})


WRONG_PODS: list[tuple[Callable[[Any], Any], str]] = [
    (part(**{"gpu-fraction": "1.0"}), "gpu-fraction is '1.0'; write a number between 0 and 1"),
    (part(**{"gpu-fraction": "half"}), "gpu-fraction is 'half'"),
    (part(**{"gpu-fraction": 0.5}), "annotation gpu-fraction is not a text"),
    (part(**{"gpu-memory": "2Gi"}), "gpu-memory is '2Gi'; write a whole number of MiB"),
    (part(**{"gpu-memory": "0"}), "gpu-memory is '0'"),
    (part(**{"gpu-memory": "2000", "gpu-fraction": "0.5"}), "has gpu-memory and gpu-fraction"),
    (part(**{"gpu-fraction-num-devices": "2"}), "gpu-fraction-num-devices needs gpu-memory or gpu-fraction"),
    (part(), "requests no GPU"),
    (lambda template: template["spec"].pop("schedulerName"), "schedulerName is None; write kai-scheduler"),
    (lambda template: template["metadata"]["labels"].pop("kai.scheduler/queue"), "None is not the name of a queue"),
    (
        lambda template: template["spec"]["containers"][0].update(
            resources={"limits": {"nvidia.com/mig-1g.10gb": "1"}}
        ),
        "requests nvidia.com/mig-1g.10gb and a part of a GPU",
    ),
]


@pytest.mark.parametrize(("change", "problem"), WRONG_PODS)
def test_a_wrong_pod_of_kai_is_refused(tmp_path: Path, capsys, change: Callable[[Any], None], problem: str) -> None:
    template = exported(tmp_path, capsys, plan_of(NAIVE_PAIR), "kai")[0]["spec"]["template"]
    kai.check_pod(template, "p")
    change(template)
    with pytest.raises(ConfigError) as caught:
        kai.check_pod(template, "p")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "gpu", "options", "problem"),
    [
        ("kai", MPS_PAIR, IMAGE, "has share_pct=33.5 of a shared GPU, but KAI divides a GPU by memory only"),
        ("kai", NAIVE_PAIR, (*IMAGE, "--queue", "a b"), "'a b' is not the name of a queue"),
        ("dra", divided(), (), "service infer_tiny has no image"),
        (
            "dra",
            divided(),
            (*IMAGE, "--time-slice", "Long"),
            "--time-slice Long: mine.json has no GPU with time slices",
        ),
        ("dra", divided(), (*IMAGE, "--queue", "q"), "--queue has no effect with --as dra; use --as kai"),
        ("kubernetes", NAIVE_PAIR, IMAGE, "use --as dra or --as kai"),
    ],
)
def test_an_export_that_the_target_cannot_express_is_refused(
    tmp_path: Path, capsys, kind: str, gpu: Gpu, options: tuple[str, ...], problem: str
) -> None:
    assert export(tmp_path, plan_of(gpu), kind, *options) == 2
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1


def test_kai_needs_the_memory_of_a_service_that_shares_a_gpu(tmp_path: Path, capsys) -> None:
    unknown = [instance(None, None, name, 1.0) for name in ("infer_tiny", "infer_tiny_text")]
    assert export(tmp_path, plan_of(Gpu(model=H100, mode="naive", instances=tuple(unknown))), "kai", *IMAGE) == 2
    assert "shares a GPU but has no memory_mib, which KAI needs" in capsys.readouterr().err
