"""Features in plain Python, one list at a time, written from their definitions."""

import math


def list_features(scores):
    """max, margin, top3, entropy, lift of one list."""
    ranked = sorted((float(s) for s in scores if abs(s) < 3.4e38), reverse=True)[:50]
    if not ranked:
        return [0.0] * 5
    best = ranked[0]
    margin = best - ranked[1] if len(ranked) > 1 else best
    top3 = sum(ranked[:3]) / len(ranked[:3])
    mean = sum(ranked) / len(ranked)
    lift = best / mean if mean > 0 else 0.0
    mass = [max(s, 0.0) for s in ranked]
    total = math.fsum(mass)
    entropy = 0.0
    if len(ranked) > 1 and total > 0:
        shares = [m / total for m in mass if m > 0]
        entropy = -math.fsum(p * math.log(p) for p in shares if p > 0) / math.log(len(ranked))
    return [best, margin, top3, entropy, lift]


def area(score, success):
    """AUC-AC by averaging over tie blocks, position by position."""
    order = sorted(range(len(score)), key=lambda i: -score[i])
    total, right, start = 0.0, 0.0, 0
    while start < len(order):
        end = start
        while end < len(order) and score[order[end]] == score[order[start]]:
            end += 1
        inside = sum(success[i] for i in order[start:end])
        for k in range(start + 1, end + 1):
            total += (right + inside * (k - start) / (end - start)) / k
        right += inside
        start = end
    return total / len(order)
