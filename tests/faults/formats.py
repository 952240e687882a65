"""A small whole example of every format that is read, and how a run reads it (inputs.py)."""

import functools
import io
import json
import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import bundles
import numpy as np
import safetensors.numpy
from faults import oracles
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.convert import config_json, tensor_files
from bert_jax.convert.families import record
from bert_jax.corpus.lexicon import Lexicon
from bert_jax.corpus.store import Store
from bert_jax.tasks.choice import reading as choice
from bert_jax.tasks.classification import reading as classification
from bert_jax.tasks.coreference import reading as coreference
from bert_jax.tasks.faulty_records import Problems
from bert_jax.tasks.qa import reading as qa
from bert_jax.tasks.tagging import conll, scores
from bert_jax.text import documents
from bert_jax.tokenizers.sentence_piece import train_sentencepiece
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.workdir import contents


class Format(NamedTuple):
  """files: {name: content}, or a function of a random.Random that makes them. read(folder) reads
  them as a run does and returns (what it read, {remark: how often it was made}), or None.
  other(folder) gives what an independent program reads; None: there is none."""

  name: str
  files: Any
  read: Callable
  other: Callable | None = None


LINE = 'the river old Ada went to Paris and she saw a dog . was happy there 今天 我 ,'
WORDS = LINE.split()
SENTENCES = [' '.join(WORDS[i:] + WORDS[:i]) for i in range(12)]
PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *dict.fromkeys(WORDS), '##s', '##ing']
TEXT = '\n'.join(SENTENCES[:3]) + '\n\n' + '\n'.join(SENTENCES[3:6]) + '\n'
VOCAB = '\n'.join(PIECES) + '\n'
SIZES = re.compile('files|bytes|records|documents|sentences|examples|questions|chunks .*')
_jsonl = lambda *rows: ''.join(f'{json.dumps(row, ensure_ascii=False)}\n' for row in rows).encode()
_table = lambda mark, *rows: ''.join(f'{mark.join(map(str, row))}\n' for row in rows).encode()


def _documents(folder):
  (path,), counts = folder.iterdir(), Counter()
  read = documents.documents(str(path), counts=counts)
  found = [' '.join(document.sentences).split() for document in read]
  has_marks = path.suffix in ('.md', '.tokens')
  return oracles.unmarked(found) if has_marks else found, _said(counts)


def _said(counts):
  """What was said of a file, {remark without its numbers: how often}; sizes are no remark."""
  said = {kind: n for kind, n in counts.items() if not SIZES.fullmatch(kind)}
  return Counter({re.sub(r'\d[\d,]*', 'N', kind): n for kind, n in said.items()})


def _labelled(reader, objective, fields, folder):
  """Reads a file as the evaluation data, then as the training data of a config."""
  (path,) = (x for x in folder.rglob('*') if x.is_file())
  config = config_lib.defaults(objective)
  changes = {'data.train': str(path), 'data.eval': str(path), **fields}
  for name, value in changes.items():
    config_lib.set_field(config, name, value)
  config_lib.check(config)
  found, said = [], Counter()
  for split in ('eval', 'train'):
    problems = Problems(split, skip=split == 'eval')
    whole = {'whole': True} if split == 'train' and objective == 'classification' else {}
    found += map(oracles.OURS[objective], reader(config, split, problems, **whole))
    problems.log()
    said += _said(problems.counts)
  return found, said


def _conll(config, split, problems):
  tagging = config.tagging
  layout = conll.Layout(config.task.format, tagging.token_column, tagging.tag_column)
  sentences = conll.read(config.data[split], split, problems, layout)
  scores.are_chunks(sorted({tag for s in sentences for tag in s.tags or () if tag}))
  return sentences


def _tables():
  plain = _table('\t', ('sentence', 'label'), *((x, i % 2) for i, x in enumerate(SENTENCES)))
  rows = ((f'"{x};"', 'ab'[i % 2]) for i, x in enumerate(SENTENCES))
  quoted = _table(';', ('sentence', 'label'), *rows)
  many = _jsonl(*({'sentence': x, 'label': ['a', 'b'][: i % 3]} for i, x in enumerate(SENTENCES)))
  numbers = _table(',', ('label', 'sentence'), *((i / 4, x[:20]) for i, x in enumerate(SENTENCES)))
  head = ['ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL']
  row = 'g-1', 'Ann saw Eve when she left.', 'she', 17, 'Ann', 0, 'TRUE', 'Eve', 8, 'FALSE', 'u'
  gap = _table('\t', head, row, [{'TRUE': 'FALSE', 'FALSE': 'TRUE'}.get(x, x) for x in row])
  target = {'span1_text': 'Ann', 'span1_index': 0, 'span2_text': 'she', 'span2_index': 4}
  wsc = [{'text': row[1], 'target': target, 'label': x, 'idx': x} for x in (0, 1)]
  rows = ((i, '"a, b"', 'She', 'went', 'saw', 'was', 'is', i % 4) for i in range(3))
  swag = _table(',', [',sent1,sent2,ending0,ending1,ending2,ending3,label'], *rows)
  record = {'premise': 'It rained.', 'choice1': 'a', 'choice2': 'b', 'label': 0}
  copa = [record | {'question': q, 'idx': i} for i, q in enumerate(('cause', 'effect'))]
  dream = [[['M: hi', 'W: ho'], [{'question': 'q', 'choice': [*'abc'], 'answer': 'b'}], '5-1']]
  race = {'id': '1', 'article': 'A.', 'questions': ['q _ .'], 'options': [[*'abcd']]}
  race |= {'answers': ['B']}
  asked = {'id': 'q1', 'question': 'what?', 'answers': [{'text': 'river', 'answer_start': 4}]}
  none = {'id': 'q2', 'answers': [], 'is_impossible': True}
  paragraphs = [{'context': SENTENCES[0], 'qas': [asked, asked | none]}]
  squad = {'version': '1.1', 'data': [{'title': 't', 'paragraphs': paragraphs}]}
  iob = 'Ada B-PER\nwent O\nto O\nParis B-LOC\nold I-LOC\n\nthe O\nriver B-LOC\n'
  placed = '科0\tB-X\n技1\tM-X\n部2\tE-X\n\n今0\tO\n'
  germeval = '#\tn-tv [2010]\n1\tAda\tB-PER\tO\n2\twent\tO\tO\n\n#\tx [2010]\n1\tParis\tB-LOC\tO\n'
  conllu = '# sent_id = 1\n1\tAda\t_\tNOUN\t_\t_\t0\troot\t_\t_\n1-2\tx\t_\t_\t_\t_\t_\t_\t_\t_\n2\tsaw\t_\tVERB\t_\t_\t1\tx\t_\t_\n\n'  # noqa: E501
  columns = {'task.format': 'conllu', 'tagging.token_column': 1, 'tagging.tag_column': 3}
  of = {'classification': classification.read, 'tagging': _conll, 'qa': qa.questions}
  of |= {'choice': choice.read, 'coreference': coreference.read}
  for name, file, content, objective, fields in (
    ('TSV', 'a.tsv', plain, 'classification', {'table.eval_share': 0.25}),
    ('CSV', 'a.csv', quoted, 'classification', {}),
    ('several labels', 'a.jsonl', many, 'classification', {'table.multi_label': True}),
    ('numbers', 'a.csv', numbers, 'classification', {'table.regression': True}),
    ('GAP', 'a.tsv', gap, 'coreference', {'task.format': 'gap'}),
    ('WSC', 'a.jsonl', _jsonl(*wsc), 'coreference', {'task.format': 'wsc'}),
    ('SWAG', 'a.csv', swag, 'choice', {'task.format': 'swag', 'task.max_length': 32}),
    ('COPA', 'a.jsonl', _jsonl(*copa), 'choice', {'task.format': 'copa', 'task.max_length': 32}),
    ('DREAM', 'a.json', _jsonl(dream), 'choice', {'task.format': 'dream', 'task.max_length': 32}),
    ('RACE', 'high/1.txt', _jsonl(race), 'choice', {'task.format': 'race', 'task.max_length': 32}),
    ('SQuAD', 'a.json', _jsonl(squad), 'qa', {'qa.unanswerable': True}),
    ('CoNLL', 'a.conll', iob.encode(), 'tagging', {}),
    ('CoNLL, BMES', 'a.conll', placed.encode(), 'tagging', {}),
    ('GermEval', 'a.tsv', germeval.encode(), 'tagging', {'tagging.token_column': 1}),
    ('CoNLL-U', 'a.conllu', 2 * conllu.encode(), 'tagging', columns),
  ):
    read, other = functools.partial(_labelled, of[objective], objective, fields), None
    if known := oracles.OTHERS.get(name):
      other = lambda folder, known=known: 2 * known(folder)  # both splits
    yield Format(name, {file: content}, read, other)


def _texts():
  wiki = f'<doc id="1" url="u" title="A">\nA\n\n{SENTENCES[0]}\n</doc>\n' * 2
  for name, text in (
    ('a.txt', TEXT),
    ('a.md', f'# A\n\n{TEXT}\n## B #\n\n{TEXT}---\n'),
    ('wiki_00', wiki),
    ('a.tokens', f' \n = A = \n \n {TEXT} = = B = = \n {TEXT}'),
    ('a.jsonl', _jsonl({'text': TEXT}, {'text': 'x', 'n': 1}).decode()),
  ):
    other = oracles.OTHERS.get(f'text {name}')
    yield Format(f'text {name}', {name: text.encode()}, _documents, other)


def _tokenizer(folder):
  tokenizer = tokenizers.load_folder(folder)
  ids = tokenizer.ids_batch(SENTENCES)
  tokenizer.decode(np.concatenate(ids))
  tokenizer.encode_batch(SENTENCES[:2])
  return [x.tolist() for x in ids], {}


def _pickle(rng):
  """A .bin of one tensor, as torch writes it, whose numbers may be lies."""
  lie = lambda *values: [rng.choice((x,) * 9 + (0, -1, 2**31 - 1, 2**30, 7)) for x in values]
  place = bundles.rebuilt('0', 'FloatStorage', *lie(6, 0), lie(2, 3), lie(3, 1))
  file, kind = io.BytesIO(), rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
  storage = bytes(rng.choice((24, 24, 24, 23, 30_000_000)))
  bundles.zipped(file, bundles.table(w=place), kind, s0=storage)
  return {'pytorch_model.bin': file.getvalue()}


def _bundle(rng):
  """A TensorFlow checkpoint whose numbers may be lies under a right checksum."""
  lie = lambda n, right=bundles.varint: right(rng.choice((n,) * 99 + (0, 2**63, 2**31, 7)))
  table = {'w': np.arange(6, dtype=np.float32).reshape(2, 3)}
  with tempfile.TemporaryDirectory() as folder, mock.patch.object(bundles, 'varint', lie):
    bundles.write_bundle(Path(folder), table, shards=1)
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _corpus(folder):
  opened = Store(folder, tokenizers.load_folder(folder))
  return opened.text(0, 1).unigrams(100).tolist(), {}


def _made():
  """Formats that our own tools write."""
  with tempfile.TemporaryDirectory() as folder:
    folder = Path(folder)
    (folder / 'a.txt').write_text(TEXT)
    (folder / 'vocab.txt').write_text(VOCAB)
    out, given = folder / 'c', f'--input {folder}/a.txt --vocab {folder}/vocab.txt --processes 1'
    prepare.run(prepare.parser().parse_args([*given.split(), '--out', str(out)]))
    files = {str(x.relative_to(out)): x.read_bytes() for x in out.rglob('*') if x.is_file()}
    whole = _corpus(out)[0]  # all of it is sealed: it is compared with itself
    yield Format('prepared corpus', files, _corpus, lambda _: whole)
    options = dict(model_type='unigram', do_lower_case=False, character_coverage=1.0, sampling=1.0)
    tokenizer, _ = train_sentencepiece(SENTENCES * 20, vocab_size=40, **options)
    files = {name: text.encode() for name, text in tokenizer.files().items()}
    yield Format('SentencePiece', files, _tokenizer)


FULL, SLIDING = 'full_attention', 'sliding_attention'
ROPES = {k: {'rope_type': 'default', 'rope_theta': x} for k, x in ((FULL, 1.6e5), (SLIDING, 1e4))}
SIDES = {'layers': 2, 'attention_heads': 2, 'ffn_dim': 16}
FAMILIES = {  # {model_type: what its config.json says besides that of a BERT}
  'modernbert': {'layer_types': [FULL, *[SLIDING] * 11], 'rope_parameters': ROPES}
  | {'local_attention': 128, 'global_attn_every_n_layers': 12, 'norm_bias': False},
  'albert': {'num_hidden_groups': 1, 'inner_group_num': 1, 'embedding_size': 128},
  'gpt2': {'n_embd': 8, 'n_layer': 2, 'n_head': 2, 'n_positions': 16, 'n_inner': None},
  'bart': {'d_model': 8, 'is_encoder_decoder': True, 'decoder_start_token_id': 2}
  | {f'{side}_{name}': n for side in ('encoder', 'decoder') for name, n in SIDES.items()},
}


def _configs():
  """The config.json of a run and of released models."""
  model = config_lib.nested({name: x.default for name, x in config_lib.SHARED.items()}).model
  read = lambda folder: config_json.is_model(folder) and config_json.read(folder) and None
  bert = {name: model[name] for name in record.SIZES} | {'id2label': {'0': 'a'}}
  masked = {'': bert | {'model_type': 'bert', 'architectures': ['BertForMaskedLM']}}
  others = {f' of {x}': bert | {'model_type': x} | more for x, more in FAMILIES.items()}
  for name, content in (masked | others).items():
    yield Format(f'config.json{name}', {'config.json': json.dumps(content).encode()}, read)
  of_run = lambda folder: (json.loads(config_lib.to_json(contents.read_config(folder))), {})
  run = {'config.json': config_lib.to_json(config_lib.defaults('mlm_nsp')).encode()}
  yield Format('config.json of a run', run, of_run, lambda x: json.loads(oracles.text_of(x)))
  code = 'from bert_jax import config as c\n\n\ndef get_config(arg):\n'
  code += "  return c.defaults('mlm_nsp') if c.parse_arg(arg, size='tiny') else None\n"
  loads = lambda folder: config_lib.load(f'{folder}/config.py') and None
  yield Format('config.py', {'config.py': code.encode()}, loads)


def _vocabularies():
  """Vocabularies of word pieces and of bytes, as text and as the library `tokenizers` has them."""
  settings = json.dumps({'do_lower_case': True, 'tokenizer_class': 'BertTokenizer'}).encode()
  of = {'vocab.txt': {'vocab.txt': VOCAB.encode(), 'tokenizer_config.json': settings}}
  fast = Tokenizer(models.WordPiece({x: i for i, x in enumerate(PIECES)}, unk_token='[UNK]'))
  fast.normalizer = normalizers.BertNormalizer()
  fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  fast.add_special_tokens(PIECES[:1])
  of['tokenizer.json'] = {'tokenizer.json': fast.to_str().encode()}
  special, merges = ['<s>', '<pad>', '</s>', '<unk>', '<mask>'], [('t', 'h'), ('th', 'e')]
  pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), 'th', 'the']
  vocabulary = {piece: i for i, piece in enumerate(pieces)}
  lines = '\n'.join(['#version: 0.2', *map(' '.join, merges), ''])
  of['vocab.json'] = {'vocab.json': json.dumps(vocabulary).encode(), 'merges.txt': lines.encode()}
  fast = Tokenizer(models.BPE(vocabulary, merges))
  fast.normalizer = normalizers.NFC()
  fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  fast.add_special_tokens(special)
  of['tokenizer.json of bytes'] = {'tokenizer.json': fast.to_str().encode()}
  for name, files in of.items():
    other = oracles.wordpiece if name == 'vocab.txt' else oracles.whole
    yield Format(name, files, _tokenizer, functools.partial(other, SENTENCES))


@functools.cache
def formats():
  """[Format, ...], always in the same order."""
  weights = safetensors.numpy.save({'w': np.ones((2, 3), np.float32), 'b': np.zeros(3, np.int64)})
  words = lambda folder: ([*map(list, Lexicon(folder / 'a.txt', True).matches(LINE))], {})
  lines = '\n'.join([*WORDS[::2], 'went to', 'old  Ada went', '# a dog'])
  tensors = lambda folder: (oracles.bits(tensor_files.read(folder)[0]), {})
  return [
    *_texts(),
    *_tables(),
    *_made(),
    *_vocabularies(),
    *_configs(),
    Format('lexicon', {'a.txt': lines.encode()}, words, functools.partial(oracles.lexicon, LINE)),
    Format('safetensors', {'model.safetensors': weights}, tensors, oracles.tensors),
    Format('.bin', _pickle, lambda x: tensor_files.read(x) and None),
    Format('TensorFlow', _bundle, lambda x: tensor_files.read(x) and None),
  ]
