"""Stages, as the tests of the protocols have them."""

from tests.protocol.conftest import MakeStage, stage

__all__ = ["MakeStage", "stage"]
