"""Published pruning curves, to compare with one's own: Voita et al. 2019 and Michel et al. 2019.

Data, not code: each table says which figure or table of the paper it is from and, if it was read off a figure, how
precisely that was possible.
"""


def _points(kept: tuple, bleu: tuple) -> tuple[tuple[int, float], ...]:
    return tuple(zip(kept, bleu, strict=True))


# Voita et al. 2019 (arXiv:1905.09418), figure 7: encoder heads kept and BLEU, the decoder frozen. Read off the figure,
# to 0.02 BLEU. 48 heads is the model before pruning.
VOITA_ENCODER = {
    "WMT": _points(
        (48, 35, 19, 12, 11, 10, 8, 7, 6, 5, 3, 2),
        (29.60, 29.70, 29.56, 29.45, 29.45, 29.45, 29.26, 29.15, 29.21, 29.08, 28.54, 28.26),
    ),
    "OpenSubtitles": _points(
        (48, 30, 17, 14, 11, 9, 7, 6, 5, 4, 3, 2, 1),
        (32.40, 32.40, 32.38, 32.43, 32.20, 32.20, 32.18, 32.15, 32.15, 32.15, 32.08, 32.02, 31.46),
    ),
}

# Voita et al. 2019, table 2: heads kept in encoder, decoder and cross-attention, BLEU pruned, BLEU from scratch.
VOITA_ALL = {
    "WMT": (
        ((48, 48, 48), 29.60, None),
        ((14, 31, 30), 29.62, 29.47),
        ((12, 21, 25), 29.36, 28.95),
        ((8, 13, 15), 29.06, 28.56),
        ((5, 9, 12), 28.90, 28.41),
    ),
    "OpenSubtitles": (
        ((48, 48, 48), 32.40, None),
        ((27, 31, 46), 32.24, 32.23),
        ((13, 17, 31), 32.23, 31.98),
        ((6, 9, 13), 32.27, 31.84),
    ),
}

# Voita et al. 2019, figure 8 (OpenSubtitles): encoder heads kept, and how many of them are positional, syntactic, for
# rare words, and without a known function. Counted in the figure; below seven heads, functions share heads.
VOITA_FUNCTIONS = (
    (48, 5, 8, 1, 34),
    (30, 4, 7, 1, 18),
    (17, 3, 7, 1, 6),
    (14, 2, 6, 1, 5),
    (11, 2, 4, 1, 4),
    (9, 2, 3, 1, 3),
    (7, 2, 2, 1, 2),
)

# Michel et al. 2019 (arXiv:1905.10650), figures 3a, 3b, 4 and 6d: BLEU, or accuracy for BERT, with 0, 10, ... 100 % of
# the heads pruned. Recovered from the vector graphics, to 0.02 BLEU and 0.002.
MICHEL = {
    "WMT, gradient": (36.05, 36.06, 35.63, 34.12, 32.48, 28.02, 24.13, 6.86, 0.36, 0.25, 0.01),
    "WMT, one out": (36.05, 35.15, 33.82, 20.66, 8.58, 6.32, 3.17, 1.25, 0.34, 0.10, 0.01),
    "BERT, gradient": (0.836, 0.835, 0.836, 0.834, 0.828, 0.815, 0.794, 0.754, 0.538, 0.391, 0.318),
    "BERT, one out": (0.836, 0.838, 0.819, 0.788, 0.768, 0.709, 0.691, 0.617, 0.369, 0.345, 0.318),
    "WMT encoder": (36.05, 36.21, 36.01, 35.64, 34.98, 34.47, 32.15, 30.17, 28.06, 23.38, 8.98),
    "WMT cross": (36.05, 36.13, 35.90, 35.91, 34.11, 32.92, 29.37, 10.59, 0.88, 0.49, 0.32),
    "WMT decoder": (36.05, 36.04, 36.16, 35.96, 35.65, 34.96, 34.26, 32.14, 30.54, 21.42, 3.06),
    "IWSLT, gradient": (34.95, 34.38, 33.66, 33.08, 32.15, 29.86, 20.60, 1.73, 0.63, 0.06, 0.00),
}
