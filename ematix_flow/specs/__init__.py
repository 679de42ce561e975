"""The specs: one frozen model per declared thing, and the only place where keys and defaults are written."""

from ematix_flow.specs.cdc import CDC, CDCTable
from ematix_flow.specs.join import Join
from ematix_flow.specs.pipeline import PipelineSpec
from ematix_flow.specs.source import Source
from ematix_flow.specs.state import SparkSettings, StateStore, Watermark
from ematix_flow.specs.target import TableRef, Target
from ematix_flow.specs.transform import Lookup, Transform
from ematix_flow.specs.window import Aggregation, Window

__all__ = [
    "CDC",
    "Aggregation",
    "CDCTable",
    "Join",
    "Lookup",
    "PipelineSpec",
    "Source",
    "SparkSettings",
    "StateStore",
    "TableRef",
    "Target",
    "Transform",
    "Watermark",
    "Window",
]
