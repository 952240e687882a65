"""T5's encoder makes vectors of texts, before which no [CLS] stands, and is trained for that."""

import json
import os

import numpy as np
import pytest
import vocabularies
from golden import make_released_golden as hf
from released import folder_of, recorded_of, same, unigram
from small_tables import WORDS

import bert_jax
from bert_jax import config, models, tokenizers
from bert_jax.convert import sentence_transformers
from bert_jax.errors import InputError
from bert_jax.objectives.encode import encode
from bert_jax.tasks import TASKS
from bert_jax.tools import convert
from bert_jax.workdir import trained

FIRST = ['<pad>', '</s>', '<unk>']
TEXTS = ['the stone', 'a', '—', 'river near the old market', 'letters ' * 9]
LONGEST = 24


def ends(**more):
  """A post_processor with </s> behind each text."""
  sep, of = (
    {'SpecialToken': {'id': '</s>', 'type_id': 0}},
    lambda x: {'Sequence': {'id': x, 'type_id': 0}},
  )
  pair = [of('A'), sep, of('B'), sep]
  special = {'</s>': {'id': '</s>', 'ids': [1], 'tokens': ['</s>']}}
  return {'type': 'TemplateProcessing', 'single': pair[:2], 'pair': pair, 'special_tokens': special}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """As sentence-transformers has them: the mean of the hidden states, of length 1."""
  path = folder_of(tmp_path_factory.mktemp('t5') / 'theirs', recorded_of(hf), 't5 gated')
  (path / 'vocab.txt').unlink()
  unigram(path, FIRST, '<extra_id_0>', post_processor=ends())
  (path / 'tokenizer_config.json').write_text('{"tokenizer_class": "T5Tokenizer"}')
  sentence_transformers.write(path, sentence_transformers.Vector('mean', True), 12, LONGEST)
  return path


def by_hand(found, text):
  """The vector of a text alone in a row: its tokens, as many as there is room for, and </s>."""
  (ids,) = found.tokenizer.ids_batch([text])
  ids = np.append(ids[: LONGEST - 1], 1)[None].astype(np.int32)
  batch = {'input_ids': ids, 'position_ids': 0 * ids, 'token_type_ids': 0 * ids}
  model = models.ModelConfig(**found.config.model)
  hidden = encode(model, found.params['encoder'], batch | {'segment_ids': 0 * ids + 1})
  vector = np.asarray(hidden)[0].mean(axis=0)
  return vector / np.linalg.norm(vector)


def test_vectors_are_means_of_the_text_and_its_end(folder):
  found = trained.load(folder)
  assert found.tokenizer.ends == (False, True) and len(found.tokenizer.special_ids) == 3
  model = bert_jax.load(folder)
  vectors = model.embed(TEXTS)
  assert model.counts['texts cut (longer than 24 tokens)'] == 2
  np.testing.assert_allclose(vectors, [by_hand(found, text) for text in TEXTS], atol=1e-5)


def pairs_of(folder):
  """(pairs of texts, fields of a run on them)"""
  rng = np.random.default_rng(0)
  texts = [' '.join(rng.choice(WORDS, 6)) for _ in range(24)]
  pairs = [{'anchor': one, 'positive': other} for one, other in zip(texts[::2], texts[1::2])]
  sizes = {'data.seq_length': 44, 'task.max_length': LONGEST, 'batch_size': 6}
  return pairs, sizes | {'init_from': folder, 'log.tensorboard': False}


def test_texts_of_a_row_have_their_ends(folder, tmp_path):
  """In training and in evaluation; as much of each text as there is room for."""
  pairs, fields = pairs_of(folder)
  path = tmp_path / 'pairs.jsonl'
  path.write_text(''.join(json.dumps(pair) + '\n' for pair in pairs))
  fields |= {'data.train': path, 'data.eval': path}
  loaded = config.load('configs/contrastive.py', [f'--config.{k}={x}' for k, x in fields.items()])
  tokenizer = tokenizers.load_folder(folder)
  sources = TASKS['contrastive'].sources(loaded, tokenizer, ('train', 'eval'))
  for split, room in ('train', 22), ('eval', LONGEST):
    row, lengths = sources[split][0], []
    for k, begin in enumerate(row['cls_positions'], 1):
      ids = row['input_ids'][row['segment_ids'] == k]
      if len(ids):
        text = pairs[0]['anchor' if k == 1 else 'positive']
        (expected,) = tokenizer.ids_batch([text])
        assert ids.tolist() == [*expected[: len(ids) - 1], 1] and row['segment_ids'][begin] == k
        lengths.append(min(len(expected) + 1, room))
        assert len(ids) == lengths[-1] or split == 'train'
    assert sum(row['segment_ids'] > 0) == (44 if split == 'train' else 24)
    assert max(lengths) == room


def test_what_needs_a_cls_is_one_sentence(folder, tmp_path):
  rows = [{'text': text, 'label': str(len(text) % 2)} for text in TEXTS * 3]
  fields = {'table.text_column': 'text', 'data.seq_length': 32, 'task.max_length': LONGEST}
  with pytest.raises(
    InputError, match=r'has no \[CLS\] \(nor <s>\), and what is asked of this model'
  ):
    bert_jax.finetune(rows, tmp_path / 'W', eval=rows, model=folder, **fields)


def test_a_sentencepiece_model_alone_has_sentinels_behind_it(tmp_path):
  """Texts are searched for them, and </s> stands behind texts; ids are SentencePiece's own."""
  theirs = vocabularies.t5(tmp_path)
  ours, n = tokenizers.load_folder(tmp_path), len(theirs)
  assert ours.pieces[n:] == [f'<extra_id_{i}>' for i in range(99, -1, -1)]
  texts = [*TEXTS, '  a   stone\t', 'Ｒiver ½', '</s> <pad>']
  assert [x.tolist() for x in ours.ids_batch(texts[:-1])] == list(map(theirs.encode, texts[:-1]))
  (plain,) = ours.ids_batch(texts[-1:])
  assert not {0, 1} & {*plain.tolist()}  # typed, they are plain text here
  (found,) = ours.ids_batch(['the river <extra_id_3> stone'])
  assert found.tolist() == [*theirs.encode('the river'), n + 96, *theirs.encode('stone')]
  assert (ours.begin_ids, ours.around) == ((), ((), (1,), (1,))) and ours.pad_id == 0
  ours.save(tmp_path)  # a tokenizer.json, which agrees with the model beside it
  assert tokenizers.load_folder(tmp_path).fingerprint == ours.fingerprint


LANGUAGES = 'eng fra deu zho-CN jpn hin rus kor tur vie ell swa fas ces fin'.split()  # noqa: SIM905


@pytest.mark.slow
@pytest.mark.parametrize('gate', ['relu', 'gated-gelu', 'gated-silu'])
def test_ids_and_vectors_are_theirs(tmp_path, shared, monkeypatch, gate):
  """Ids of 10,500 lines of 15 languages, vectors of texts longer than the distances reach; and what
  is exported is read by transformers and sentence-transformers as it was."""
  transformers, torch = pytest.importorskip('transformers'), pytest.importorskip('torch')
  sentences = pytest.importorskip('sentence_transformers')
  monkeypatch.setenv('TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK', 'true')  # sentencepiece's is new
  files = [next((shared / 'ntrex').glob(f'*.{language}.txt')) for language in LANGUAGES]
  lines = [line for file in files for line in file.read_text().splitlines()[:700]]
  assert len(lines) >= 10_000
  folder = tmp_path / 'theirs'
  vocabularies.t5(folder, lines, vocab_size=6000)
  theirs = transformers.T5Tokenizer.from_pretrained(folder, model_max_length=128)
  alone = tokenizers.load_folder(folder)
  os.remove(folder / 'spiece.model')
  theirs.save_pretrained(folder)
  torch.manual_seed(0)
  sizes = dict(vocab_size=6144, d_model=48, d_kv=12, num_heads=4, d_ff=80, num_layers=3)
  of_theirs = transformers.T5Config(
    **sizes, feed_forward_proj=gate, relative_attention_max_distance=40
  )
  encoder = transformers.T5EncoderModel(of_theirs).eval()
  for name, x in encoder.named_parameters():
    x.data = torch.randn(x.shape) * 0.3 + ('norm' in name)
  encoder.save_pretrained(folder)
  ours = bert_jax.load(folder)
  expected = theirs(lines, add_special_tokens=False)['input_ids']
  assert [ids.tolist() for ids in ours.tokenizer.ids_batch(lines)] == expected
  holes = [f'{line} <extra_id_{i % 100}> {line}' for i, line in enumerate(lines[::9])]
  expected += theirs(holes, add_special_tokens=False)['input_ids']
  assert [ids.tolist() for ids in alone.ids_batch(lines + holes)] == expected
  assert alone.pieces == theirs.convert_ids_to_tokens(range(len(theirs)))
  assert alone.around == ours.tokenizer.around
  long = [' '.join(lines[i : i + 3]) for i in range(0, 60, 3)]
  batch = theirs(long, padding=True, truncation=True, return_tensors='pt')
  assert batch['attention_mask'].sum(1).max() > 100
  with torch.no_grad():
    hidden = encoder(**batch).last_hidden_state
  real = batch['attention_mask'][..., None]
  wanted = ((hidden * real).sum(1) / real.sum(1)).numpy()
  ours.limit = 128
  found = ours.embed(
    [theirs.decode(x, skip_special_tokens=True) for x in batch['input_ids']], normalize=False
  )
  np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
  convert.convert(str(folder), f'hf:{tmp_path}/hf')
  again = transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf')
  assert again(lines)['input_ids'] == theirs(lines)['input_ids']
  vectors = sentences.SentenceTransformer(str(tmp_path / 'hf'), device='cpu').encode(lines[:4])
  np.testing.assert_allclose(vectors, ours.embed(lines[:4], normalize=False), rtol=0, atol=1e-4)


def test_an_encoder_without_a_cls_goes_out_by_the_command(tmp_path, folder):
  """Its answers are compared, too."""
  convert.convert(str(folder), f'hf:{tmp_path}/hf')
  found, again = trained.load(folder), trained.load(tmp_path / 'hf')
  same(found.params, again.params, found.config)
