"""What the options before the command say, for all commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ematix_flow.ops.terminal import Stderr

Format = Literal["text", "json"]


@dataclass
class Settings:
    """Made before the options are read, so that an error in reading them can be told; filled in when they are."""

    debug: bool = False
    verbose: bool = False
    log_format: Format = "text"
    stderr: Stderr = field(default_factory=Stderr)
