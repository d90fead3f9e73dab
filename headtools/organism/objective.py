"""What the organism is trained on: the translation loss, and the aids that make its organs visible.

The aids act on the loss or on how word vectors are made; no weight and no mask is set by hand.

- *Composed word vectors*: a word's vector is its own plus those of its features (``vocabulary.py``), while training.
- *Guided alignment* (Chen et al. 2016; Garg et al. 2019): cross-attention is asked to look at the gold source word.
- *Source-side tagging*: from the encoder's output alone, each source word names its translation and the accents of its
  two neighbours. Dropped after the first part of the run.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtools.organism.vocabulary import END, PAD, vocabulary
from headtools.roles.corpus import Sentence

WIDTH, HEADS, LAYERS, INNER = 128, 8, 6, 256
IGNORE = -100


def configuration(heads: int = HEADS) -> "MarianConfig":  # noqa: F821
    """Configuration of the organism: 6 + 6 layers of ``heads`` heads, width 128, inner width 256."""
    from transformers import MarianConfig

    number = {word: i for i, word in enumerate(vocabulary())}
    return MarianConfig(
        vocab_size=len(number), decoder_vocab_size=len(number), share_encoder_decoder_embeddings=True,
        d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, max_position_embeddings=128,
        activation_function="relu", scale_embedding=True, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        pad_token_id=number[PAD], eos_token_id=number[END], bos_token_id=None, decoder_start_token_id=number[PAD],
        forced_eos_token_id=number[END], num_beams=1, max_length=64, tie_word_embeddings=True,
    )  # fmt: skip


class Apprentice(nn.Module):
    """A MarianMT model in training, with composed word vectors and a source-side tagger."""

    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        from transformers import MarianMTModel

        self.model = MarianMTModel._from_config(configuration(heads), attn_implementation="eager")
        words = vocabulary()
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
        """The word vectors, (vocabulary, width): each word's own plus its features'."""
        return (self.own + self.member @ self.shared) * 0.5

    def forward(self, batch: dict[str, Tensor], guide: float, tag: float) -> tuple[Tensor, dict[str, float]]:
        """Loss of a batch and its parts; ``guide`` and ``tag`` weigh the aids (0 switches one off)."""
        table = self.table()
        body = self.model.model
        outputs = body(
            inputs_embeds=F.embedding(batch["source"], table) * body.encoder.embed_scale,
            attention_mask=batch["mask"],
            decoder_inputs_embeds=F.embedding(batch["given"], table),  # the decoder scales it itself
            output_attentions=guide > 0,
            use_cache=False,
        )
        wanted = batch["wanted"]
        kept = wanted != IGNORE
        states = outputs.last_hidden_state[kept]
        logits = F.linear(states, table, self.bias)
        loss = F.cross_entropy(logits, wanted[kept])
        parts = {"loss": loss.item(), "accuracy": (logits.argmax(-1) == wanted[kept]).float().mean().item()}
        if guide > 0:
            maps = torch.stack(outputs.cross_attentions, 1)  # (batch, layer, head, target, source)
            gold = batch["aligned"][:, None, None, :, None].expand(*maps.shape[:-1], 1)
            seen = maps.gather(-1, gold).squeeze(-1).movedim(-1, 1)[kept]  # (words, layer, head)
            loss = loss - guide * seen.clamp_min(1e-6).log().mean()
            parts["aligned"] = (seen.detach() > 0.5).float().mean().item()
        if tag > 0:
            states = outputs.encoder_last_hidden_state[batch["tagged"]]
            words = F.linear(self.word_tagger(states), table, self.bias)
            gold = batch["translation"][batch["tagged"]]
            accents = self.accent_tagger(states)
            sides = batch["accents"][batch["tagged"]]
            left, right = F.cross_entropy(accents[:, :2], sides[:, 0]), F.cross_entropy(accents[:, 2:], sides[:, 1])
            loss = loss + tag * (F.cross_entropy(words, gold) + 0.5 * (left + right))
            parts["tagged"] = (words.argmax(-1) == gold).float().mean().item()
        return loss, parts

    @torch.no_grad()
    def graduate(self) -> "MarianMTModel":  # noqa: F821
        """The plain MarianMT model: composed vectors written into its embedding table, the tagger left behind."""
        self.model.model.shared.weight.copy_(self.table())
        self.model.final_logits_bias.copy_(self.bias[None])
        return self.model


def encode(batch: list[Sentence], number: dict[str, int]) -> dict[str, Tensor]:
    """Tensors of a batch of sentences: (B, S) for source side, (B, T) for target side; S and T count the end mark."""
    from headtools.organism.lexicon import is_accented

    pad, end = number[PAD], number[END]
    b, s = len(batch), 1 + max(len(x.words) for x in batch)
    t = 1 + max(len(x.target) for x in batch)
    source, translation = torch.full((b, s), pad), torch.zeros(b, s, dtype=torch.long)
    given, wanted = torch.full((b, t), pad), torch.full((b, t), IGNORE)
    aligned, accents = torch.zeros(b, t, dtype=torch.long), torch.zeros(b, s, 2, dtype=torch.long)
    for i, sentence in enumerate(batch):
        n, m = len(sentence.words), len(sentence.target)
        target = torch.tensor([number[w] for w in sentence.target])
        places = torch.tensor(sentence.alignment) - 1
        source[i, : n + 1] = torch.tensor([*(number[w] for w in sentence.words), end])
        given[i, 1 : m + 1] = target
        wanted[i, :m], wanted[i, m] = target, end
        aligned[i, :m], aligned[i, m] = places, n
        translation[i, places] = target
        heard = torch.tensor([0, *(is_accented(w) for w in sentence.words), 0])
        accents[i, :n, 0], accents[i, :n, 1] = heard[:-2], heard[2:]
    mask = source != pad
    tagged = mask & (source != end)
    return {"source": source, "mask": mask.long(), "given": given, "wanted": wanted, "aligned": aligned,
            "translation": translation, "accents": accents, "tagged": tagged}  # fmt: skip


def arguments(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The model's arguments, labels included, from what :func:`encode` gave; labels are -100 after the end mark."""
    return {"input_ids": batch["source"], "attention_mask": batch["mask"],
            "decoder_input_ids": batch["given"], "labels": batch["wanted"]}  # fmt: skip
