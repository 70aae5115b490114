"""A plan as Kubernetes manifests: a Deployment for each service on each kind of instance, with a pod per instance.

A pod requests its instance as a resource of NVIDIA's device plugin under the strategy `mixed`:
`nvidia.com/mig-3g.40gb`, or `nvidia.com/gpu` for an undivided GPU. The user's container reads the plan from environment
variables: `PROCESSES`, `BATCH_SIZE`, and `RATE_PER_S` of each process.
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from pipeline.planner.deployment import Plan
from pipeline.planner.export import pods


def text_of(plan: Plan, name: str, source: str, images: Mapping[str, str]) -> str:
    """Return the manifests as one stream of YAML; `images` are by service; "" is for all other services.

    Raises:
        ConfigError: the plan has no service, a service has no image, or an undivided GPU has several services.
    """
    manifests = []
    for pod_set in pods.list_pods(plan, pods.KUBERNETES, source):
        (container,) = pod_set.containers
        resources = {"limits": {name_resource(container.profile): "1"}}
        spec = {"containers": [pods.make_container(container, images, resources=resources)]}
        manifests.append(pods.make_deployment(pod_set, name, spec))
    return yaml.safe_dump_all(manifests, sort_keys=False)


def name_resource(profile: str | None) -> str:
    """Return the device plugin's resource of a MIG profile, or of an undivided GPU."""
    # The device plugin writes `1g.10gb.me` for `1g.10gb+me`.
    return "nvidia.com/gpu" if profile is None else f"nvidia.com/mig-{profile.replace('+', '.')}"
