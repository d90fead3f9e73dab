"""The model in which the organism is trained: translation loss, and auxiliary losses that make heads specialise.

The aids act on the loss or on how word vectors are made; no weight and no mask is set by hand.

- *Composed word vectors*: during training a word's vector is its own plus those of its features (``vocabulary.py``).
- *Guided alignment* (Chen et al. 2016; Garg et al. 2019): cross-attention is trained to attend to the gold source word.
- *Source-side tagging*: from the encoder's output alone, the translation of each source word and the accents of its two
  neighbours are predicted. Only in the first part of the run.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtools.organism.batches import IGNORE, encode, word_ids
from headtools.organism.lexicon import is_accented
from headtools.organism.vocabulary import END, PAD, Features, vocabulary
from headtools.roles.sentence import Sentence

WIDTH, HEADS, LAYERS, INNER = 128, 8, 6, 256


def configuration(heads: int = HEADS, ids: Mapping[str, int] | None = None) -> "MarianConfig":  # noqa: F821
    """Return the configuration of the organism: 6 + 6 layers of ``heads`` heads, width 128, inner width 256.

    ``ids`` are the token ids of another vocabulary.
    """
    from transformers import MarianConfig

    ids = word_ids() if ids is None else ids
    return MarianConfig(
        vocab_size=len(ids),
        decoder_vocab_size=len(ids),
        share_encoder_decoder_embeddings=True,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=INNER,
        decoder_ffn_dim=INNER,
        max_position_embeddings=128,
        activation_function="relu",
        scale_embedding=True,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        pad_token_id=ids[PAD],
        eos_token_id=ids[END],
        bos_token_id=None,
        decoder_start_token_id=ids[PAD],
        forced_eos_token_id=ids[END],
        num_beams=1,
        max_length=64,
        tie_word_embeddings=True,
    )


class AuxiliaryTrainingModel(nn.Module):
    """A MarianMT model in training, with composed word vectors and a source-side tagger."""

    def __init__(self, heads: int = HEADS, words: Mapping[str, Features] | None = None) -> None:
        """``words``: another vocabulary, with the features of each word."""
        super().__init__()
        from transformers import MarianMTModel

        words = vocabulary() if words is None else words
        ids = {word: i for i, word in enumerate(words)}
        self.model = MarianMTModel._from_config(configuration(heads, ids), attn_implementation="eager")
        features = {name: i for i, name in enumerate(dict.fromkeys(f for fs in words.values() for f in fs))}
        member = torch.zeros(len(words), len(features))
        for i, names in enumerate(words.values()):
            member[i, [features[name] for name in names]] = 1.0
        self.register_buffer("member", member, persistent=False)
        self.own = nn.Parameter(torch.randn(len(words), WIDTH) * WIDTH**-0.5 * 0.5)
        self.shared = nn.Parameter(torch.randn(len(features), WIDTH) * WIDTH**-0.5)
        self.bias = nn.Parameter(torch.zeros(len(words)))
        self.word_tagger = nn.Linear(WIDTH, WIDTH)
        self.accent_tagger = nn.Linear(WIDTH, 4)
        for name, weight in self.model.named_parameters():
            if weight.dim() == 2 and "embed" not in name and "shared" not in name and "lm_head" not in name:
                nn.init.xavier_uniform_(weight)
                if "encoder.layers" in name and ("q_proj" in name or "k_proj" in name):
                    weight.data.mul_(1.5)
        self.model.model.shared.weight.requires_grad_(False)

    def table(self) -> Tensor:
        """Return the word vectors, (vocabulary, width): each word's own plus those of its features."""
        return (self.own + self.member @ self.shared) * 0.5

    def forward(self, batch: dict[str, Tensor], guide: float, tag: float) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a batch and its parts; ``guide`` and ``tag`` are the weights of the auxiliary losses."""
        table = self.table()
        body = self.model.model
        outputs = body(
            inputs_embeds=F.embedding(batch["input_ids"], table) * body.encoder.embed_scale,
            attention_mask=batch["attention_mask"],
            decoder_inputs_embeds=F.embedding(batch["decoder_input_ids"], table),  # the decoder scales it itself
            output_attentions=guide > 0,
            use_cache=False,
        )
        counted = batch["labels"] != IGNORE
        labels = batch["labels"][counted]
        logits = F.linear(outputs.last_hidden_state[counted], table, self.bias)
        loss = F.cross_entropy(logits, labels)
        parts = {"loss": loss.item(), "accuracy": (logits.argmax(-1) == labels).float().mean().item()}
        if guide > 0:
            maps = torch.stack(outputs.cross_attentions, 1)  # (batch, layer, head, target, source)
            gold = batch["aligned"][:, None, None, :, None].expand(*maps.shape[:-1], 1)
            aligned = maps.gather(-1, gold).squeeze(-1).movedim(-1, 1)[counted]  # (words, layer, head)
            loss = loss - guide * aligned.clamp_min(1e-6).log().mean()  # every head, unlike Garg et al., who guide one
            parts["aligned"] = (aligned.detach() > 0.5).float().mean().item()
        if tag > 0:
            states = outputs.encoder_last_hidden_state[batch["tagged"]]
            words = F.linear(self.word_tagger(states), table, self.bias)
            gold = batch["translation"][batch["tagged"]]
            accents = self.accent_tagger(states)
            neighbours = batch["accents"][batch["tagged"]]  # (words, 2)
            left = F.cross_entropy(accents[:, :2], neighbours[:, 0])
            right = F.cross_entropy(accents[:, 2:], neighbours[:, 1])
            loss = loss + tag * (F.cross_entropy(words, gold) + 0.5 * (left + right))
            parts["tagged"] = (words.argmax(-1) == gold).float().mean().item()
        return loss, parts

    @torch.no_grad()
    def export(self) -> "MarianMTModel":  # noqa: F821
        """Return the plain MarianMT model, with the composed vectors in its embedding table and without the tagger."""
        self.model.model.shared.weight.copy_(self.table())
        self.model.final_logits_bias.copy_(self.bias[None])
        return self.model


def training_batch(sentences: list[Sentence], ids: Mapping[str, int] | None = None) -> dict[str, Tensor]:
    """Return a batch with the targets of the auxiliary losses: alignment, translations of words, neighbours' accents.

    ``aligned`` (B, T): the source position of each target word. ``translation`` (B, S): the target word of each source
    word. ``accents`` (B, S, 2): whether the words before and after are accented. ``tagged`` (B, S): the words. ``ids``
    are the token ids of another vocabulary.
    """
    ids = word_ids() if ids is None else ids
    batch = encode(sentences, ids)
    source, labels = batch["input_ids"], batch["labels"]
    aligned = torch.zeros_like(labels)
    translation, accents = torch.zeros_like(source), torch.zeros(*source.shape, 2, dtype=torch.long)
    for row, sentence in enumerate(sentences):
        n, m = len(sentence.words), len(sentence.target)
        positions = torch.tensor(sentence.alignment) - 1
        aligned[row, :m], aligned[row, m] = positions, n
        translation[row, positions] = labels[row, :m]
        accented = torch.tensor([0, *(is_accented(word) for word in sentence.words), 0])
        accents[row, :n, 0], accents[row, :n, 1] = accented[:-2], accented[2:]
    tagged = (source != ids[PAD]) & (source != ids[END])
    return batch | {"aligned": aligned, "translation": translation, "accents": accents, "tagged": tagged}
