"""What calls to a server may cost in all, and what they have cost so far."""

from typing import Any

from calibjax.errors import input_error


class BudgetSpent(RuntimeError):
    """The next calls could pass the budget; what was answered is kept."""


class Spending:
    """Counts calls and tokens of the clients that share it.

    max_calls: calls at most, retries included. max_cost: no batch is begun once that much is spent,
    in the unit of the prices; prices: what a million prompt tokens and a million generated ones
    cost, by the server's own token counts. None: no limit.
    """

    def __init__(
        self,
        *,
        max_calls: int | None = None,
        max_cost: float | None = None,
        prices: tuple[float, float] | None = None,
    ) -> None:
        if max_cost is not None and prices is None:
            fix = "--token_prices=PROMPT,OUTPUT, such as 0.15,0.6"
            raise input_error("max_cost", max_cost, "prices of a million tokens beside it", fix)
        self.max_calls, self.max_cost, self.prices = max_calls, max_cost, prices
        self.calls = self.prompt_tokens = self.output_tokens = 0

    @property
    def cost(self) -> float:
        """Of the tokens so far; 0 without prices."""
        prompt, output = self.prices or (0.0, 0.0)
        return (self.prompt_tokens * prompt + self.output_tokens * output) / 1e6

    def begin(self, count: int) -> None:
        """Before `count` calls: refused as a whole, so that no answer is paid for and then lost."""
        if self.max_calls is not None and self.calls + count > self.max_calls:
            raise self._spent("max_calls", self.max_calls, f"{count} more do not fit")
        if self.max_cost is not None and self.cost >= self.max_cost:
            raise self._spent("max_cost", self.max_cost, "it is spent")

    def call(self) -> None:
        """Before each call: one that is made again counts again."""
        if self.max_calls is not None and self.calls >= self.max_calls:
            raise self._spent("max_calls", self.max_calls, "retries have used it up")
        self.calls += 1

    def add(self, usage: Any) -> None:
        """The `usage` of an answer; a server that sends none is counted as free."""
        if isinstance(usage, dict):
            self.prompt_tokens += _count(usage.get("prompt_tokens"))
            self.output_tokens += _count(usage.get("completion_tokens"))

    def _spent(self, name: str, limit: float, why: str) -> BudgetSpent:
        used = f"{self.calls} calls, {self.prompt_tokens} prompt and {self.output_tokens} generated"
        return BudgetSpent(
            f"{name}={limit}: {why} after {used} tokens, cost {self.cost:.4g};"
            f" fix: go on with the same command, --resume and --{name} for what is to come"
        )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
