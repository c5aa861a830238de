"""Runs over two hosts, in folders of their own."""

from tests.flows.conftest import rig

__all__ = ["rig"]
