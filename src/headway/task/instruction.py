"""Answer as the assistant does: the loss of causal_lm on the tokens that the token store marks as learnt.

The chats are rendered, encoded and marked when the store is built (headway.data.templates); a position that predicts
another token has no label, so counts, fillers and chunks of the loss are those of causal_lm.
"""

from __future__ import annotations

from headway.task.causal_lm import CausalLM


class Instruction(CausalLM):
    """The Task of kind `instruction`; its option `loss_on` says what the store was built for."""

    option_names = frozenset({"loss_on"})
