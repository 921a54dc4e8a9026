"""calibjax: retrieval-augmented generation that knows how sure it may be.

Axis letters used in names (`q_BTHh`): B batch, K documents of a query, N continuations of a prefix,
T tokens, P prefix, S suffix, D model, F feed-forward, H query heads, G key-value heads, h head,
R rank, C classes, L layers, V vocabulary.
"""

__version__ = "0.1.0"
