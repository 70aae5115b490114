"""Exports for dynamic resource allocation and for KAI fit the published types, which refuse wrong ones."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.planner.deployment import Gpu, Plan
from pipeline.prepare.mig import layouts, profiles
from tests.support.json_schema import violations
from tests.support.plans import H100, instance, plan_of
from tests.unit.planner.export.test_export import WHOLE, export, make_divided_gpu, refuse, schema

IMAGE = ("--image", "registry/any:1")


def pair(
    mode: Any = "naive",
    memory_mib: Sequence[float | None] = (20000.5, 30000.0),
    shares_pct: Sequence[float | None] = (None, None),
) -> Gpu:
    """Return an undivided GPU with two services."""
    names = ("infer_tiny", "infer_tiny_text")
    instances = [
        instance(None, None, name, 10.0, memory_mib=memory, share_pct=share)
        for name, memory, share in zip(names, memory_mib, shares_pct, strict=True)
    ]
    return Gpu(model=H100, mode=mode, instances=tuple(instances))


NAIVE_PAIR, MPS_PAIR = pair(), pair("mps", shares_pct=(33.5, 60.0))


def export_manifests(tmp_path: Path, capsys: Any, plan: Plan, kind: str, *options: str) -> list[Any]:
    assert export(tmp_path, plan, kind, *IMAGE, *options) == 0
    manifests = list(yaml.safe_load_all(capsys.readouterr().out))
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            assert [*violations(manifest, schema("kubernetes_deployment_v1"))] == []
            if kind == "kai":
                assert [*violations(manifest["spec"]["template"], schema("kai_pod"))] == []
    for template, workload in zip(manifests[::2], manifests[1::2], strict=True) if kind == "dra" else ():
        assert [*list_faults(template, workload)] == []
    return manifests


def list_faults(template: Any, workload: Any) -> Iterator[str]:
    """Yield the faults of a claim template and of the pods with its claims."""
    yield from (faults := [*violations(template, schema("resource_claim_template_v1"))])
    if faults:
        return
    devices, pod = get_devices(template), get_pod(workload)
    classes = {request["name"]: request["exactly"]["deviceClassName"] for request in devices["requests"]}
    names_profile = {}
    for request in devices["requests"]:
        expression = " ".join(selector["cel"]["expression"] for selector in request["exactly"].get("selectors", ()))
        names_profile[request["name"]] = re.findall(r"profile == '([^']*)'", expression)
        if bool(names_profile[request["name"]]) != (request["exactly"]["deviceClassName"] == "mig.nvidia.com"):
            yield f"{request['name']}: a request of mig.nvidia.com, and no other, selects a profile"
    products = set(re.findall(r"'([^']+)'", str(re.findall(r"productName in (\[[^]]*\])", str(devices)))))
    for product in products if any(names_profile.values()) else ():
        model = profiles.load_model(mig_table.find_model_name(product))
        try:
            layouts.plan_layout(model, [layouts.resolve(model, name) for (name,) in names_profile.values()])
        except ConfigError as error:
            yield f"requests: {error}"
    for group in (*devices.get("constraints", ()), *devices.get("config", ())):
        yield from (f"no request is called {name}" for name in group.get("requests", ()) if name not in classes)
    for config in devices.get("config", ()):
        kind, device_class = config["opaque"]["parameters"]["kind"], "gpu.nvidia.com"
        if kind == "MigDeviceConfig":
            device_class = "mig.nvidia.com"
        if {classes.get(name) for name in config.get("requests") or classes} != {device_class}:
            yield f"{kind} is for devices of {device_class} only"
    claims = {claim["name"]: claim["resourceClaimTemplateName"] for claim in pod["resourceClaims"]}
    used = [claim for container in pod["containers"] for claim in container["resources"]["claims"]]
    if any(claims.get(claim["name"]) != template["metadata"]["name"] for claim in used):
        yield "a container uses a claim which is not in resourceClaims"
    if {claim["request"] for claim in used} != set(classes):
        yield f"containers do not use the requests {', '.join(classes)}"


def get_devices(template: Any) -> Any:
    return template["spec"]["spec"]["devices"]


def get_pod(workload: Any) -> Any:
    return workload["spec"]["template"]["spec"]


def test_the_instances_of_a_gpu_are_one_claim_with_one_parent(tmp_path: Path, capsys) -> None:
    template, workload = export_manifests(tmp_path, capsys, plan_of(make_divided_gpu(), make_divided_gpu()), "dra")
    devices = template["spec"]["spec"]["devices"]
    expressions = [
        device_request["exactly"]["selectors"][0]["cel"]["expression"] for device_request in devices["requests"]
    ]
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
    assert [
        (container["name"], container["resources"]["claims"][0]["request"]) for container in spec["containers"]
    ] == [
        ("infer-tiny", "mig-0"),
        ("infer-tiny-text", "mig-1"),
        ("infer-tiny-2", "mig-2"),
    ]


def test_services_that_share_a_gpu_have_one_claim_with_mps_or_time_slices(tmp_path: Path, capsys) -> None:
    plan = plan_of(MPS_PAIR, NAIVE_PAIR)
    manifests = export_manifests(tmp_path, capsys, plan, "dra", "--time-slice", "Short")
    sharing = [
        manifest["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]["sharing"]
        for manifest in manifests[::2]
    ]
    # One percentage limits all clients; the variable of each container limits it further.
    assert sharing[0] == {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 60}}
    assert sharing[1] == {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}
    containers = manifests[1]["spec"]["template"]["spec"]["containers"]
    shares = [{entry["name"]: entry["value"] for entry in container["env"]} for container in containers]
    assert [share["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for share in shares] == ["33.5", "60"]
    assert {container["resources"]["claims"][0]["request"] for container in containers} == {"gpu"}
    alone = Gpu(model=H100, mode="naive", instances=(instance(None, None, "infer_tiny", 1.0),))
    template, _ = export_manifests(tmp_path, capsys, plan_of(alone), "dra")
    assert template["spec"]["spec"]["devices"].keys() == {"requests"}


def parameters(template: Any) -> Any:
    return get_devices(template)["config"][0]["opaque"]["parameters"]


def change_profile(old: str, new: str) -> Callable[[Any, Any], None]:
    def change(template: Any, _: Any) -> None:
        for request in get_devices(template)["requests"]:
            cel = request["exactly"]["selectors"][0]["cel"]
            cel["expression"] = cel["expression"].replace(old, new)

    return change


def change_sharing(**changes: Any) -> Callable[[Any, Any], None]:
    return lambda template, _: parameters(template)["sharing"].update(changes)


def change_devices(**changes: Any) -> Callable[[Any, Any], None]:
    return lambda template, _: get_devices(template).update(changes)


def limit(**changes: Any) -> Callable[[Any, Any], None]:
    return change_sharing(mpsConfig=changes)


SLICES = {"interval": "Short"}
SAME_GPU = "gpu.nvidia.com/parentUUID"
WRONG_CLAIMS: list[tuple[Callable[[Any, Any], Any], str]] = [
    (change_profile("2g.20gb", "2g.10gb"), "NVIDIA H100 80GB HBM3 has no MIG profile '2g.10gb'"),
    (change_profile("2g.20gb", "4g.40gb"), "requests: [3g.40gb,4g.40gb,1g.10gb] does not fit on NVIDIA H100"),
    (limit(defaultActiveThreadPercentage=120), "defaultActiveThreadPercentage: 120 is above 100"),
    (limit(defaultActiveThreadPercentage=-1), "defaultActiveThreadPercentage: -1 is below 0"),
    (limit(defaultActiveThreadPercentage="50"), "'50' is not of type integer"),
    (limit(defaultPinnedDeviceMemoryLimit="1Ki"), "'1Ki' is too long or does not match"),
    (limit(defaultPinnedDeviceMemoryLimit="10GB"), "'10GB' is too long or does not match"),
    (change_sharing(mpsconfig={}), "mpsconfig is unknown"),
    (change_sharing(strategy="Mps"), "'Mps' is not 'MPS'"),
    (change_sharing(timeSlicingConfig=SLICES), "timeSlicingConfig is unknown"),
    (change_sharing(strategy="TimeSlicing"), "'TimeSlicing' is not 'MPS'"),
    (change_sharing(timeSlicingConfig={"interval": "Shortest"}), "timeSlicingConfig is unknown"),
    (lambda template, _: parameters(template).update(kind="GpuConfig"), "GpuConfig is for devices of gpu.nvidia.com"),
    (lambda template, _: parameters(template).update(apiVersion="v1"), "'v1' is not 'resource.nvidia.com/v1beta1'"),
    (lambda template, _: template.update(apiVersion="resource.k8s.io/v1beta1"), "is not 'resource.k8s.io/v1'"),
    (change_devices(constraints=[{"matchAttribute": "gpu.nvidia.com/uuid"}]), f"is not '{SAME_GPU}'"),
    (change_devices(constraints=[{"matchAttribute": SAME_GPU, "requests": ["gpu"]}]), "no request is called gpu"),
    (change_devices(requests=[]), "requests: 0 items"),
    (lambda template, _: template["metadata"].update(name="My_Plan"), "'My_Plan' is too long or does not match"),
    (
        lambda template, _: get_devices(template)["requests"][0]["exactly"].update(deviceClassName="gpu.nvidia.com"),
        "a request of mig.nvidia.com, and no other, selects a profile",
    ),
    (
        lambda _, workload: get_pod(workload)["containers"].pop(),
        "containers do not use the requests mig-0, mig-1, mig-",
    ),
    (lambda _, workload: get_pod(workload).update(resourceClaims=[]), "a claim which is not in resourceClaims"),
]


@pytest.mark.parametrize(("change", "problem"), WRONG_CLAIMS)
def test_a_wrong_claim_template_is_refused(
    tmp_path: Path, capsys, change: Callable[[Any, Any], None], problem: str
) -> None:
    template, workload = export_manifests(tmp_path, capsys, plan_of(make_divided_gpu()), "dra")
    change(template, workload)
    assert any(problem in fault for fault in list_faults(template, workload)), [*list_faults(template, workload)]


def test_time_slices_are_of_undivided_gpus_and_of_known_length(tmp_path: Path, capsys) -> None:
    template, workload = export_manifests(tmp_path, capsys, plan_of(NAIVE_PAIR), "dra", "--time-slice", "Short")
    for change in (
        lambda config: config["sharing"]["timeSlicingConfig"].update(interval="Shortest"),
        lambda config: config["sharing"].update(mpsConfig={}),
        lambda config: config.update(kind="MigDeviceConfig"),
    ):
        wrong = copy.deepcopy(template)
        change(parameters(wrong))
        assert [*list_faults(wrong, workload)]


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
        ("dra", (make_divided_gpu(), MPS_PAIR, NAIVE_PAIR)),
        ("kai", (make_divided_gpu(), WHOLE, NAIVE_PAIR)),
        ("kubernetes", (make_divided_gpu(), WHOLE)),
    ],
)
def test_the_client_of_kubernetes_reads_every_field(
    tmp_path: Path, capsys, reads: Callable[[Any], bool], kind: str, gpus: Sequence[Gpu]
) -> None:
    for gpu in gpus:
        assert all(map(reads, export_manifests(tmp_path, capsys, plan_of(gpu), kind)))


UNPUBLISHED: list[Callable[[Any, Any], Any]] = [
    lambda template, workload: get_devices(template).update(request=[]),
    lambda template, workload: get_devices(template)["requests"][0].pop("name"),
    lambda template, workload: get_devices(template)["requests"][0].update(deviceClassName="mig.nvidia.com"),
    lambda template, workload: get_devices(template)["constraints"][0].update(matchAttributes="a/b"),
    lambda template, workload: get_devices(template)["config"][0]["opaque"].pop("driver"),
    lambda template, workload: workload["spec"].update(replicas="two"),
    lambda template, workload: workload["spec"].pop("selector"),
    lambda template, workload: get_pod(workload).update(resourceClaim=[]),
    lambda template, workload: get_pod(workload)["containers"][0].pop("name"),
    lambda template, workload: get_pod(workload)["containers"][0].update(resource={}),
]


@pytest.mark.parametrize("change", UNPUBLISHED)
def test_the_client_of_kubernetes_does_not_read_wrong_fields(
    tmp_path: Path, capsys, reads: Callable[[Any], bool], change: Callable[[Any, Any], Any]
) -> None:
    manifests = export_manifests(tmp_path, capsys, plan_of(make_divided_gpu()), "dra")
    change(*manifests)
    assert not all(map(reads, manifests))


def test_kai_requests_instances_gpus_and_parts_of_gpus(tmp_path: Path, capsys) -> None:
    plan = plan_of(make_divided_gpu(), WHOLE, NAIVE_PAIR)
    manifests = export_manifests(tmp_path, capsys, plan, "kai", "--queue", "team")
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
    by_fraction = export_manifests(tmp_path, capsys, plan_of(NAIVE_PAIR), "kai", "--share-by", "fraction")
    assert [manifest["spec"]["template"]["metadata"]["annotations"] for manifest in by_fraction] == [
        {"gpu-fraction": "0.246"},  # 20000.5 of 81559 MiB
        {"gpu-fraction": "0.368"},
    ]
    (first, _) = export_manifests(tmp_path, capsys, plan_of(pair("mps")), "kai")
    spec = first["spec"]["template"]["spec"]
    assert spec["volumes"][0]["hostPath"]["path"] == spec["containers"][0]["volumeMounts"][0]["mountPath"]


def part(**changes: Any) -> Callable[[Any], None]:
    return lambda template: template["metadata"].update(annotations={**changes})


WRONG_PODS: list[Callable[[Any], Any]] = [
    part(**{"gpu-fraction": "1.0"}),
    part(**{"gpu-fraction": "half"}),
    part(**{"gpu-fraction": 0.5}),
    part(**{"gpu-memory": "2Gi"}),
    part(**{"gpu-memory": "0"}),
    part(**{"gpu-memory": "2000", "gpu-fraction": "0.5"}),
    part(**{"gpu-fraction-num-devices": "2"}),
    part(),
    lambda template: template["spec"].pop("schedulerName"),
    lambda template: template["metadata"]["labels"].pop("kai.scheduler/queue"),
    lambda template: template["spec"]["containers"][0].update(resources={"limits": {"nvidia.com/mig-1g.10gb": "1"}}),
]


@pytest.mark.parametrize("change", WRONG_PODS)
def test_a_wrong_pod_of_kai_is_refused(tmp_path: Path, capsys, change: Callable[[Any], None]) -> None:
    template = export_manifests(tmp_path, capsys, plan_of(NAIVE_PAIR), "kai")[0]["spec"]["template"]
    change(template)
    assert [*violations(template, schema("kai_pod"))]


@pytest.mark.parametrize(
    ("kind", "gpu", "options", "problem"),
    [
        ("kai", MPS_PAIR, IMAGE, "has share_pct=33.5 of a shared GPU, but KAI divides a GPU by memory only"),
        ("kai", NAIVE_PAIR, (*IMAGE, "--queue", "a b"), "'a b' is not the name of a queue"),
        ("kai", pair(memory_mib=(None, None)), IMAGE, "shares a GPU but has no memory_mib, which KAI needs"),
        ("kai", NAIVE_PAIR, (*IMAGE, "--time-slice", "Long"), "--time-slice has no effect with --as kai"),
        (
            "kai",
            pair(memory_mib=(81559.0, 0.0)),
            (*IMAGE, "--share-by", "fraction"),
            "gpu-fraction is '1'; write a number between 0 and 1",
        ),
        ("dra", make_divided_gpu(), (), "service infer_tiny has no image"),
        (
            "dra",
            make_divided_gpu(),
            (*IMAGE, "--time-slice", "Long"),
            "--time-slice Long: mine.json has no GPU with time slices",
        ),
        ("dra", make_divided_gpu(), (*IMAGE, "--queue", "q"), "--queue has no effect with --as dra; use --as kai"),
        ("kubernetes", NAIVE_PAIR, IMAGE, "use --as dra or --as kai"),
    ],
)
def test_an_export_that_the_target_cannot_express_is_refused(
    tmp_path: Path, capsys, kind: str, gpu: Gpu, options: tuple[str, ...], problem: str
) -> None:
    assert problem in refuse(tmp_path, capsys, plan_of(gpu), kind, *options)
