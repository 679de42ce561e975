"""A test kit for declared pipelines: the real engine, with rows from the test instead of brokers and databases."""

from ematix_flow.testing.pipeline import PipelineTest, pipeline_test

__all__ = ["PipelineTest", "pipeline_test"]
