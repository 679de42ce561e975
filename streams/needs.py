"""Which Java libraries a pipeline needs, told by the kinds of its connections."""

from __future__ import annotations

from ematix_flow.connections import KafkaConnection
from ematix_flow.specs import Lookup, PipelineSpec, Source, Target

_GROUPS = {
    "delta_local": {"delta"},
    "delta_s3": {"delta", "s3"},
    "object_store_s3": {"s3"},
    "kafka": {"kafka"},
}
# AWS's own libraries are among those for S3.
_MSK = {"msk", "s3"}


def jar_groups_of(spec: PipelineSpec) -> set[str]:
    """Groups of the lock in `streams/jars.lock`, for a spec whose connections have been looked up."""
    users: tuple[Source | Target | Lookup, ...] = (*spec.sources, *spec.targets, *spec.transform.lookups.values())
    groups = {group for user in users for group in _GROUPS.get(user.kind or "", ())}
    clusters = [user.connection for user in users if isinstance(user.connection, KafkaConnection)]
    return groups | (_MSK if any(cluster.msk_iam_region for cluster in clusters) else set())
