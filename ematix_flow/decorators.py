"""The decorator namespace `ematix`: each decorator validates, freezes, registers, and does nothing else."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, NoReturn, Unpack

from ematix_flow import connections, jobs, pipelines, table, transforms
from ematix_flow.errors import DeclarationError, NotBuilt, Problem
from ematix_flow.job_fields import JobTarget
from ematix_flow.keywords import Keywords, spec_from_keywords
from ematix_flow.origins import place, users_line
from ematix_flow.problems import near, shown
from ematix_flow.result import RunResult
from ematix_flow.specs import PipelineSpec

_LATER = ("feature_view", "training_set", "workflow", "warehouse_pipeline")


class StreamingPipeline:
    """A declared pipeline: `.spec` says what it is, calling it runs it in this process."""

    def __init__(self, function: Callable[[], Any], spec: PipelineSpec) -> None:
        functools.update_wrapper(self, function)
        self.spec = spec

    def __call__(self, **options: Any) -> RunResult:
        """Run it; the options are those of `run_pipeline`: bounded, flush, metrics_port, spark."""
        # By name, because declarations know nothing of the runtime and importing them must not load Spark.
        result: RunResult = importlib.import_module("ematix_flow.ops.api").run_declared(self.spec, **options)
        return result

    def __repr__(self) -> str:
        return f"<pipeline {self.spec.name!r} declared at {self.spec.origin}>"


class Ematix:
    """`@ematix.connection`, `@ematix.table`, `@ematix.pipeline` and `@ematix.streaming_pipeline`."""

    connection = staticmethod(connections.connection)
    table = staticmethod(table.table)

    @staticmethod
    def streaming_pipeline(
        *given: object, **keywords: Unpack[Keywords]
    ) -> Callable[[Callable[[], Any]], StreamingPipeline]:
        """Declare a pipeline. Its name is the function's, unless `name` says otherwise; the function is not called."""
        _refuse_positional(given)

        def declare(function: Callable[[], Any]) -> StreamingPipeline:
            origin = _origin(function)
            _check_signature(function, origin)
            keywords.setdefault("name", function.__name__)
            spec = spec_from_keywords(origin, **keywords)
            return StreamingPipeline(function, pipelines.register(spec))

        return declare

    @staticmethod
    def pipeline(*given: object, **keywords: Any) -> Callable[[Callable[..., Any]], jobs.BatchPipeline]:
        """Declare a batch pipeline. The function returns a SELECT, a `Source`, or nothing with `source_table`."""
        _refuse_positional(given, "@ematix.pipeline(target=..., mode=...)")
        return lambda function: jobs.declare(function, keywords)

    job = pipeline

    @staticmethod
    def target(target: type, **keywords: Any) -> JobTarget:
        """One of several targets of a batch pipeline."""
        return JobTarget(target=target, **keywords)

    @staticmethod
    def transform(*given: object, **keywords: Any) -> Callable[[Callable[..., Any]], transforms.Transform]:
        """Declare a function of an open connection that runs by name: after a load, or on its own."""
        _refuse_positional(given, "@ematix.transform(name=..., target_connection=...)")
        known = ("name", "target_connection", "schedule")
        if problems := [
            Problem(key, "unknown keyword", ", ".join(known), near(key, known)) for key in keywords if key not in known
        ]:
            raise DeclarationError("@ematix.transform", problems, origin=users_line())
        return lambda function: transforms.declare(function, **keywords)

    @staticmethod
    def transform_ref(name: str) -> transforms.TransformRef:
        """In `transforms_post`: a transform or a batch pipeline by its name."""
        return transforms.TransformRef(name)

    def __getattr__(self, name: str) -> NoReturn:
        if name in _LATER:
            words = "is not built yet in this version"
            raise NotBuilt(f"ematix.{name}", instead="declare an @ematix.streaming_pipeline", words=words)
        guess = near(name, [*(word for word in dir(self) if not word.startswith("_")), *_LATER])
        hint = f'; did you mean "{guess}"?' if guess else ""
        raise AttributeError(f"ematix has no {name!r}{hint}")


ematix = Ematix()


def _origin(function: Callable[[], Any]) -> str:
    code = getattr(function, "__code__", None)
    return place(code.co_filename, code.co_firstlineno) if code else ""


def _refuse_positional(
    given: tuple[object, ...], allowed: str = "@ematix.streaming_pipeline(source=..., target=...)"
) -> None:
    if not given:
        return
    bare = inspect.isfunction(given[0])
    found = "the decorator stands without parentheses" if bare else f"found {shown(given[0])} without a keyword"
    raise DeclarationError(allowed.partition("(")[0], [Problem("", found, allowed)], origin=users_line())


def _check_signature(function: Callable[[], Any], origin: str) -> None:
    if not inspect.isfunction(function):
        found = f"found {shown(function)}"
        problem = Problem("", found, "a function without arguments")
        raise DeclarationError("@ematix.streaming_pipeline", [problem], origin=users_line())
    if parameters := list(inspect.signature(function).parameters):
        found = f"the function takes {', '.join(parameters)}"
        problem = Problem("", found, "a function without arguments")
        raise DeclarationError(f'pipeline "{function.__name__}"', [problem], origin=origin)
