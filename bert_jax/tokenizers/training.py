"""Trains vocabularies: the same texts give the same bytes, on any machine, in any process.

Hugging Face's WordPiece trainer breaks ties by hash order, so two runs differ. SentencePiece's
byte-pair trainer does not, and it is faster: train_wordpiece counts words as the tokenizer will see
them, lets SentencePiece find the merges, and writes its pieces in Google's notation.
(Byte-pair encoding: Sennrich et al. 2016; WordPiece training as BERT's was never published.)
"""

import functools
import io
import logging
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import pre_tokenizers

from bert_jax import tokenizers
from bert_jax.errors import InputError
from bert_jax.tokenizers import MAX_WORD_CHARACTERS, RESERVED, checked, normalizer

log = logging.getLogger('bert_jax')

_SPACE = re.compile('[ \t\r\n]+')
_FIRST_SYMBOL = 0x10000  # symbols for SentencePiece lie above every character it treats specially
_SLICE = 4096  # characters; SentencePiece leaves out longer lines
_UNTAUGHT = str.maketrans('\0\u2585', '  ')  # SentencePiece leaves out lines with these
_THREADS = 4  # a constant, since unigram's sums depend on how the words are dealt to threads


def of_run(config, folder: str | Path | None, texts: Callable[[], Iterable[str]]):
  """The tokenizer of a run: that of the folder it starts from, or of tokenizer.path, or a new one.

  texts: what a new vocabulary of model.vocab_size pieces is trained on. InputError if the folder's
  is not that of tokenizer.path, or its size is not the model's; released weights may have rows that
  no piece has.
  """
  settings, size = config.tokenizer, config.model.vocab_size

  def read():
    return tokenizers.load(settings.path, do_lower_case=settings.do_lower_case)

  if folder:
    tokenizer = tokenizers.load_folder(folder)
    own = getattr(tokenizer, 'do_lower_case', settings.do_lower_case)
    if own != settings.do_lower_case:
      log.warning(
        'text is %s, as the vocabulary of %s asks, although tokenizer.do_lower_case is %s',
        'lower-cased' if own else 'not lower-cased', folder, settings.do_lower_case,
      )  # fmt: skip
    if Path(settings.path).is_file() and read().fingerprint != tokenizer.fingerprint:
      raise InputError(
        f'tokenizer.path={settings.path} is not the vocabulary of {folder}, whose weights only fit '
        'their own; leave tokenizer.path empty.'
      )
  elif settings.path:
    tokenizer = read()
  else:
    log.info('training a %s vocabulary of %d pieces', settings.kind, size)
    common = {
      'vocab_size': size,
      'do_lower_case': settings.do_lower_case,
      'character_coverage': settings.character_coverage,
      'sampling': config.corpus.sampling if 'corpus' in config else 1.0,
    }
    with tempfile.TemporaryDirectory() as scratch:
      if settings.kind == 'wordpiece':
        path = Path(scratch) / 'vocab.txt'
        counts = train_wordpiece(texts(), path, **common)
      else:
        path = Path(scratch) / 'spm.model'
        counts = train_sentencepiece(texts(), path, model_type=settings.kind, **common)
      tokenizer = tokenizers.load(path, do_lower_case=settings.do_lower_case)
    log.info('vocabulary: %s', describe(counts))
  if tokenizer.vocab_size > size or (tokenizer.vocab_size < size and not folder):
    raise InputError(
      f'the vocabulary has {tokenizer.vocab_size} pieces and model.vocab_size is {size}; set '
      f'--config.model.vocab_size={tokenizer.vocab_size}, or name another tokenizer.path.'
    )
  return tokenizer


def describe(counts: dict[str, Any]) -> str:
  """'12,345 words, ...': what a trainer returned, for a log line."""
  told = [f'{n:,} {name.replace("_", " ")}' for name, n in counts.items() if name != 'shares']
  shares = counts['shares'] if len(counts['shares']) > 1 else {}
  return ', '.join(told + [f'{share:.1%} {name}' for name, share in shares.items()])


Texts = Iterable[str] | Mapping[str, Iterable[str]]  # of one language, or {language: its texts}


def train_wordpiece(
  texts: Texts,
  path: str | Path,
  *,
  vocab_size: int,
  do_lower_case: bool = True,
  tokenize_chinese_chars: bool = True,
  character_coverage: float = 0.99999,
  sampling: float = 1.0,
) -> dict[str, Any]:
  """Writes a vocab.txt of exactly vocab_size lines and returns what was counted on the way.

  First [PAD] [UNK] [CLS] [SEP] [MASK], then each kept character as `x`, then as `##x` (not those
  that always stand alone), then pieces in the order they were merged.
  A corpus too small for vocab_size pieces is filled up with [unused0], [unused1], ... The rarest
  characters, together 1 - character_coverage of the text, are left out, and words that contain them
  will be [UNK]: at SentencePiece's own 0.9995 that hits the digits of English novels; for Chinese
  and Japanese it is the right value. sampling: S, see _weights; of what is returned, 'shares' are
  what the languages then make up of the words.
  """
  count_words = functools.partial(
    _count_words, normalize=normalizer(do_lower_case, tokenize_chinese_chars).normalize_str
  )
  counts = {name: count_words(own) for name, own in _languages(texts)}
  sizes = {name: own.total() for name, own in counts.items()}
  weights = _weights(sizes, sampling)
  words = Counter()
  for name, own in counts.items():
    for word, count in own.items():
      words[word] += count * weights[name]
  characters = Counter()
  for word, count in words.items():
    for c in word:
      characters[c] += count
  alphabet = _cover(characters, character_coverage)
  kept = set(alphabet)
  # Chinese characters and punctuation always stand alone: no word goes on with them.
  inside = [c for c in alphabet if len(count_words(['a' + c])) == 1]
  smallest = len(RESERVED) + len(alphabet) + len(inside)
  if vocab_size < smallest:
    raise InputError(
      f'vocab_size {vocab_size} cannot hold the {len(alphabet)} characters of the corpus and the '
      f'{len(inside)} of them that continue a word; use {smallest} or more, or lower '
      'character_coverage'
    )
  known = {w: n for w, n in words.items() if kept.issuperset(w)}
  mergeable = {w: n for w, n in known.items() if 1 < len(w) <= MAX_WORD_CHARACTERS}
  pieces = [*RESERVED, *alphabet, *('##' + c for c in inside)]
  pieces += _merges(mergeable, alphabet, vocab_size - smallest)
  unused = [f'[unused{i}]' for i in range(vocab_size - len(pieces))]
  _write(path, ''.join(f'{piece}\n' for piece in pieces + unused).encode())
  return {
    'words': sum(sizes.values()),
    'distinct_words': len(words),
    'words_with_dropped_characters': sum(
      n for own in counts.values() for w, n in own.items() if w not in known
    ),
    'characters_kept': len(alphabet),
    'characters_dropped': len(characters) - len(alphabet),
    'pieces': len(pieces),
    'unused': len(unused),
    'shares': _shares(sizes, weights),
  }


def train_sentencepiece(
  texts: Texts,
  path: str | Path,
  *,
  vocab_size: int,
  model_type: str = 'unigram',
  do_lower_case: bool = False,
  character_coverage: float = 0.99999,
  sampling: float = 1.0,
) -> dict[str, Any]:
  """Writes a SentencePiece model (model_type 'unigram' or 'bpe') and returns what was counted.

  The ids are [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, then pieces; no text produces the
  reserved ones. The text is held in memory (46 MB of English: 1.1 GB, half a minute; unigram takes
  five times as long where there are no blanks). sampling: S, see _weights; 'shares' are what the
  languages then make up of the characters.
  """
  if model_type not in ('unigram', 'bpe'):
    raise InputError(f"model_type is '{model_type}'; use 'unigram' or 'bpe'")
  lines = {name: _lines(own) for name, own in _languages(texts)}
  sizes = {name: sum(map(len, own)) for name, own in lines.items()}
  weights = _weights(sizes, sampling)
  scale = min(weights.values())  # of the largest language, whose lines come once
  model = _train(
    sentence_iterator=(
      line
      for name, own in lines.items()
      for i, line in enumerate(own)
      for _ in range((i + 1) * weights[name] // scale - i * weights[name] // scale)
    ),
    vocab_size=vocab_size,
    model_type=model_type,
    character_coverage=character_coverage,
    normalization_rule_name='nmt_nfkc_cf' if do_lower_case else 'nmt_nfkc',
    max_sentence_length=4 * _SLICE,  # bytes
    pad_id=0,
    unk_id=1,
    bos_id=-1,
    eos_id=-1,
    pad_piece='[PAD]',
    unk_piece='[UNK]',
    control_symbols=['[CLS]', '[SEP]', '[MASK]'],
  )
  _write(path, model)
  return {
    'lines': sum(map(len, lines.values())),
    'characters': sum(sizes.values()),
    'pieces': vocab_size,
    'shares': _shares(sizes, weights),
  }


def _languages(texts: Texts) -> list[tuple[str, Iterable[str]]]:
  return list(texts.items()) if isinstance(texts, Mapping) else [('', texts)]


def _weights(sizes: dict[str, int], sampling: float) -> dict[str, int]:
  """{language: how often each of its counts is counted}, whole numbers.

  With S = sampling, a language that makes up the share P(L) of what there is counts in proportion
  to P(L)^S. That is how M-BERT, with S = 0.7, kept English from filling its vocabulary
  (google-research/bert, multilingual.md). 1 leaves all as it is.
  """
  for name, size in (sizes or {'': 0}).items():
    if not size:
      raise InputError(
        f'{f"language {name!r}" if name else "the corpus"} holds no words; check the paths and '
        'filters that produce it'
      )
  if sampling == 1 or len(sizes) == 1:
    return dict.fromkeys(sizes, 1)
  largest = max(sizes.values())  # hundredths of what it counts
  return {name: round(100 * (largest / size) ** (1 - sampling)) for name, size in sizes.items()}


def _shares(sizes: dict[str, int], weights: dict[str, int]) -> dict[str, float]:
  counted = {name: size * weights[name] for name, size in sizes.items()}
  return {name: round(n / sum(counted.values()), 6) for name, n in counted.items()}


def _count_words(texts: Iterable[str], normalize: Callable[[str], str]) -> Counter:
  """Words as the tokenizer sees them; each distinct run of non-blanks is looked at only once."""
  if isinstance(texts, str):
    checked(texts)
  tokens = Counter()
  for text in texts:
    tokens.update(_SPACE.split(*checked([text])))
  split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
  words = Counter()
  for token, count in tokens.items():
    for word, _ in split(normalize(token)):
      words[word] += count
  return words


def _cover(characters: Counter, coverage: float) -> list[str]:
  """The most frequent characters that make up `coverage` of the text, in code point order."""
  missing = coverage * characters.total()
  kept = []
  for c, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
    if missing <= 0:
      break
    kept.append(c)
    missing -= count
  return sorted(kept)


def _merges(words: dict[str, int], alphabet: list[str], number: int) -> list[str]:
  """Up to `number` merged pieces in WordPiece notation, the most useful first.

  To SentencePiece a character is one symbol at the start of a word and another inside it, which is
  just what ## says.
  """
  if not words or not number:
    return []
  first = {ord(c): _FIRST_SYMBOL + 2 * i for i, c in enumerate(alphabet)}
  inside = {c: symbol + 1 for c, symbol in first.items()}
  rows = [(w[0].translate(first) + w[1:].translate(inside), n) for w, n in words.items()]
  rows.sort(key=lambda row: (-row[1], row[0]))
  symbols = len(set().union(*(symbols for symbols, _ in rows)))
  with tempfile.TemporaryDirectory() as folder:
    table = Path(folder) / 'words.tsv'
    table.write_bytes(''.join(f'{symbols}\t{n}\n' for symbols, n in rows).encode())
    model = _train(
      input=str(table),
      input_format='tsv',
      vocab_size=1 + symbols + number,
      hard_vocab_limit=False,
      model_type='bpe',
      character_coverage=1.0,
      normalization_rule_name='identity',
      add_dummy_prefix=False,
      remove_extra_whitespaces=False,
      split_by_unicode_script=False,
      split_by_number=False,
      max_sentencepiece_length=MAX_WORD_CHARACTERS,
      bos_id=-1,
      eos_id=-1,
    )
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  merged = []
  for i in range(1, processor.get_piece_size()):  # 0 is its <unk>
    codes = [ord(symbol) - _FIRST_SYMBOL for symbol in processor.id_to_piece(i)]
    if len(codes) > 1:
      merged.append('##' * (codes[0] % 2) + ''.join(alphabet[code // 2] for code in codes))
  return merged


def _lines(texts: Iterable[str]) -> list[str]:
  """The texts as lines that SentencePiece takes in whole."""
  if isinstance(texts, str):
    checked(texts)
  lines = []
  for text in texts:
    for line in checked([text])[0].translate(_UNTAUGHT).split('\n'):
      line = line.strip()
      lines += [line[i : i + _SLICE] for i in range(0, len(line), _SLICE)]
  return lines


def _train(**settings) -> bytes:
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      model_writer=model, num_threads=_THREADS, minloglevel=2, **settings
    )
  except RuntimeError as e:
    raise InputError(_explain(str(e), settings['vocab_size'])) from e
  return model.getvalue()


def _explain(message: str, vocab_size: int) -> str:
  if found := re.search(r'smaller than required_chars\. \d+ vs (\d+)', message):
    return (
      f'vocab_size {vocab_size} cannot hold the characters of the corpus; '
      f'use {found[1]} or more, or lower character_coverage'
    )
  if found := re.search(r'set it to a value <= (\d+)', message):
    return f'vocab_size {vocab_size} is more than this corpus supports; use {found[1]} or less'
  return f'SentencePiece could not train on this corpus: {message.split("] ")[-1].strip()}'


def _write(path: str | Path, data: bytes):
  path = Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(data)
