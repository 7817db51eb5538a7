"""The controller's own log: JSON lines on stderr, which is a file when it runs in the background."""

from __future__ import annotations

import sys

import structlog


def configure_log() -> None:
    """Have structlog write JSON lines to what stderr is now."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
