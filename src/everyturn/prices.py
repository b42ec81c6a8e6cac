"""What an answer cost, by the price table inside genai-prices.

Nothing is fetched, and an unknown price is None, never 0.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everyturn.values import Usage


def cost(usage: Usage, model: str, provider: str | None = None) -> Decimal | None:
    """The price of `usage` in US dollars, or None where the table does not know the model.

    `usage.input_tokens` counts all input, what was read from or written to a cache included.
    """
    if not _known(model, provider):
        return None
    from genai_prices import Usage as PricedUsage
    from genai_prices import calc_price

    priced = PricedUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_input_tokens,
        cache_write_tokens=usage.cache_creation_input_tokens,
    )
    try:
        return calc_price(priced, model, provider_id=provider).total_price
    except (LookupError, ValueError):
        # ValueError: the parts add up to more than the whole, so the counts are not what they say.
        return None


@lru_cache(maxsize=256)
def _known(model: str, provider: str | None) -> bool:
    # Misses are remembered here: genai-prices walks all its providers for each one.
    from genai_prices.data_snapshot import get_snapshot

    try:
        get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        return False
    return True
