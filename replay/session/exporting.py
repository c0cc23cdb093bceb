# pyright: strict
"""Ops of a session as a bundle; what goes into one is `export`'s."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opreplay.replay.export import Bundle
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.session.setting import Setting


def bundle_of(plan: ReplayPlan, setting: Setting, *, keep_names: bool, max_op_bytes: int | None) -> Bundle:
    """The ops that a script can replay with torch alone, filled as this process's initializers say, and the others."""
    from opreplay.replay.export import make_bundle
    from opreplay.replay.host.environment import default_op_bytes
    from opreplay.replay.ops.inputs import open_registry
    from opreplay.replay.resolve.policy import Policy

    return make_bundle(
        plan,
        open_registry(),
        policy=Policy(allow_imports=setting.allow_imports),
        memory_bytes=max_op_bytes or default_op_bytes(),
        keep_names=keep_names,
    )
