"""RegimeAbstain: tell from retrieval scores, before generating, that the evidence is incomplete."""

from calibjax.abstention.rcs import RCS
from calibjax.abstention.score_features import NAMES, Features, features

__all__ = ["NAMES", "RCS", "Features", "features"]
