"""What is said before the first step about the data and the settings of a run."""

import logging

import pytest
from conftest import small_overrides
from small_tables import WORDS

from bert_jax import config as c
from bert_jax.errors import InputError
from bert_jax.run import initialization, inputs, setup
from bert_jax.tasks import TASKS, remarks
from bert_jax.tokenizers import run_tokenizer
from bert_jax.tools.prepare import __main__ as prepare
from bert_jax.train import train
from bert_jax.workdir import contents

SENTENCES = 'The old river crosses the town. A small boat follows it. Nobody knows the long road.'


def remarks_on(config, *overrides):
  """The sentences about a run of a config."""
  config = c.load(config, [f'--config.{x}' for x in overrides])
  task = TASKS[config.objective]
  config = task.resolve(config)
  tokenizer = run_tokenizer.load_or_train(config, None, lambda: task.texts(config))
  return task.remarks(config, tokenizer, task.sources(config, tokenizer))


def said(*overrides):
  return remarks_on('configs/pretrain.py:runlocal', 'corpus.eval_share=0.2', *overrides)


def vocabulary(shared, name):
  path = shared / 'vocab' / f'bert-base-{name}.txt'
  with path.open() as file:
    size = sum(1 for _ in file)
  return f'tokenizer.path={path}', f'model.vocab_size={size}'


def ntrex(shared, folder, language):
  """The file of a language of NTREX in documents, a blank line between them."""
  (path,) = (shared / 'ntrex').glob(f'newstest2019-*.{language}.txt')
  names = (shared / 'ntrex' / 'DOCUMENT_IDS.tsv').read_text().splitlines()
  lines, last = [], None
  for name, line in zip(names, path.read_text().splitlines(), strict=True):
    lines += ([''] if last not in (None, name) else []) + [line]
    last = name
  out = folder / f'{language}.txt'
  out.write_text('\n'.join(lines) + '\n')
  return out


@pytest.mark.parametrize(
  'language, name, case',
  [
    ('eng', 'uncased', 'true'),
    ('deu', 'multilingual-cased', 'false'),
    ('zho-CN', 'chinese', 'true'),
  ],
)
def test_nothing_is_said_where_data_and_vocabulary_fit(shared, tmp_path, language, name, case):
  text, length = ntrex(shared, tmp_path, language), 'data.seq_length=128'
  vocab = vocabulary(shared, name)
  assert not said(f'data.train={text}', *vocab, f'tokenizer.do_lower_case={case}', length)


def test_german_in_english_settings(shared, tmp_path):
  text = f'data.train={ntrex(shared, tmp_path, "deu")}'
  (cut,) = said(text, *vocabulary(shared, 'uncased'), 'data.seq_length=128')
  assert cut.startswith('a word is 2.0 pieces on average') and 'tokenizer.path' in cut


def test_german_examples_in_english_settings(shared, tmp_path):
  """Fine-tuning data is looked at as text is; English says nothing."""
  for language in ('deu', 'eng'):
    texts = ntrex(shared, tmp_path, language).read_text().split('\n')[:400]
    rows = (f'{text}\t{i % 2}' for i, text in enumerate(x for x in texts if x))
    path = tmp_path / f'{language}.tsv'
    path.write_text('sentence\tlabel\n' + '\n'.join(rows) + '\n')
    settings = f'data.train={path}', *vocabulary(shared, 'uncased'), 'data.seq_length=256'
    if language == 'eng':
      assert not remarks_on('configs/finetune.py:task=table', *settings)
      continue
    for more, keep, another in (
      ((), 'set tokenizer.do_lower_case=false, with a cased vocabulary', 'tokenizer.path'),
      (('init_from=W',), 'start from a cased model (init_from)', 'of this language (init_from)'),
    ):
      lost, cut = remarks_on('configs/finetune.py:task=table', *settings, *more)
      assert '% of the words lose their accents by lower-casing (' in lost
      assert lost.endswith(f'; if they matter, {keep}.')
      assert cut.startswith('a word is ') and another in cut


def test_labels_are_counted_and_rare_ones_are_named(vocab, tmp_path, caplog):
  caplog.set_level(logging.INFO, 'bert_jax')
  path = tmp_path / 'a.tsv'
  settings = f'data.train={path}', f'tokenizer.path={vocab}', 'model.vocab_size=15'

  def about(labels, *more):
    rows = (f'{WORDS[i % 10]} {WORDS[i // 10]}\t{label}\n' for i, label in enumerate(labels))
    path.write_text('sentence\tlabel\n' + ''.join(rows))
    return remarks_on('configs/finetune.py', *settings, *more)

  assert about('b' * 40 + 'aaac', 'table.eval_share=0.1') == [
    "labels with one example or none in training: 'c'; give more examples, or put them under "
    'another label.',
    "labels that no example of the held-out data has: 'a'; raise table.eval_share.",
  ]
  assert "labels: 'b' 37, 'a' 3, 'c' 1" in caplog.messages
  assert about([f'{k % 12}.5' for k in range(48)]) == [
    'all 12 labels are numbers and are taken as classes; table.regression=true learns them as '
    'numbers.'
  ]
  halves = [f'{k}.5' for k in (*range(30), *[7] * 9)]
  assert len(about(halves)) == 1, 'not that most are rare'
  with pytest.raises(InputError, match='none but the only texts of 3 labels, .*regression=true'):
    about([f'{k}.5' for k in range(10)], 'table.eval_share=0.3')
  assert about([*[str(k % 13) for k in range(65)], '13'])[1] == (
    "labels with one example or none in training: '13'; give more examples, or put them under "
    'another label.'
  )
  assert any(
    x.startswith("labels: '0.5' 4, ") and x.endswith(' and 2 more') for x in caplog.messages
  )
  assert about([f'{k}.5' for k in range(7)])[0].startswith('all 7 labels are numbers')
  path.write_text('sentence\tlabel\n1,5\ta\n\tb\n0.25\tb\n3\ta\n')
  wrong, *_ = remarks_on('configs/finetune.py', *settings)
  assert wrong == "all texts are numbers, such as '1,5'; name another column."
  with pytest.raises(InputError, match="label_column name 'label', 'label'; name different"):
    c.load('configs/finetune.py', ['--config.table.text_column=label'])
  assert about(['a', 'b', 'a; b', 'b', 'a, c', 'a; b', 'a', 'a, c']) == [
    "classes that are several labels in one: 'a; b'; table.multi_label=true learns each by itself."
  ]
  texts = [f'I was sent {k} of {k + 2}.' for k in range(33)]
  for once, many in (
    ('33 of the labels of 33', texts),
    ('31 of the labels of 37', texts + texts[:2] * 2),
    ('11 of the labels of 11', [f'{k},5' for k in range(11)]),
  ):
    with pytest.raises(InputError, match=f"column 'label': {once} texts .*, or table.labels"):
      about(many, 'table.label_column=label')
  assert about([*texts[:30], *[texts[30]] * 8]), '30 of 38 are not too many'
  assert about('12345' * 4, 'table.regression=true') == about('1234' * 4) == []
  assert about(['a,b', 'b', '', 'a,b'], 'table.multi_label=true') == []
  assert "labels: 'b' 3, 'a' 2" in caplog.messages
  assert '1 with none of the labels (kept) (a.tsv:4)' in caplog.text


def test_that_many_texts_are_cut_is_told_with_the_field_that_reads_more(vocab, tmp_path):
  path = tmp_path / 'a.tsv'
  settings = f'data.train={path}', f'tokenizer.path={vocab}', 'model.vocab_size=15'

  def about(long, *more):
    texts = (f'{WORDS[k % 10]} ' * (9 if k < long else 1) + f'\t{"ab"[k % 2]}\n' for k in range(40))
    path.write_text('sentence\tlabel\n' + ''.join(texts))
    return remarks_on('configs/finetune.py', *settings, *more)

  cut = 'of the texts are cut at 10 tokens; if that matters, raise'
  windows = 'table.long_texts=windows'
  assert about(2, 'data.seq_length=10') == about(9) == []
  assert about(3, 'data.seq_length=10') == [f'8% {cut} data.seq_length, or set {windows}.']
  assert about(20, 'task.max_length=10') == [f'50% {cut} task.max_length, or set {windows}.']
  assert about(20, 'task.max_length=10', windows) == []


def test_it_is_said_that_weights_begin_random(vocab, tmp_path, caplog):
  caplog.set_level(logging.INFO, 'bert_jax')
  (tmp_path / 'a.tsv').write_text('sentence\tlabel\nold\ta\nriver\tb\n')
  paths = f'--config.data.train={tmp_path / "a.tsv"}', f'--config.tokenizer.path={vocab}'
  config = c.load(
    'configs/finetune.py:task=table,size=tiny', [*paths, '--config.model.vocab_size=15']
  )
  inputs.read_inputs(config, tmp_path / 'W')
  assert 'init_from is empty: the model begins with random weights' in caplog.messages


def test_the_best_of_errors_is_the_lowest(vocab, tmp_path, monkeypatch):
  """A run that began otherwise goes on, as its config cannot change."""
  (tmp_path / 'a.tsv').write_text('sentence\tlabel\nold\t1\nriver\t4\n')
  fields = (
    *(f'data.{split}={tmp_path / "a.tsv"}' for split in ('train', 'eval')),
    *(f'tokenizer.path={vocab} model.vocab_size=15 table.regression=true'.split()),
    'checkpoint.best_metric=mean_absolute_error',
  )
  given = [f'--config.{x}' for x in fields]
  config = c.load('configs/finetune.py:task=table,size=tiny', given)
  with pytest.raises(InputError, match='=mean_absolute_error is good where it is low; set check'):
    inputs.read_inputs(config, tmp_path / 'W')
  config.checkpoint.best_mode = 'min'
  begun = inputs.read_inputs(config, tmp_path / 'W')
  begun.tokenizer.save(tmp_path / 'W')
  config.checkpoint.best_mode = begun.config.checkpoint.best_mode = 'max'
  contents.claim(tmp_path / 'W', begun.config)
  beginning = initialization.Beginning(tmp_path / 'W', {'step': 4})
  monkeypatch.setattr(initialization, 'beginning_of', lambda *_: beginning)
  inputs.read_inputs(config, tmp_path / 'W')


def test_scripts_that_a_vocabulary_lacks(shared, tmp_path):
  """Each language is named, the worst first; one that fits is not."""
  parts = {name: ntrex(shared, tmp_path, name) for name in ('eng', 'rus', 'heb')}
  train = ','.join(f'{name}={path}' for name, path in parts.items())
  found = said(f'data.train={train}', *vocabulary(shared, 'uncased'), 'data.seq_length=128')
  (single,) = (x for x in found if 'single characters' in x)
  assert single.startswith('heb 98%, rus 76% of the words are cut into single characters')
  assert not any('eng' in sentence for sentence in found)


def varied(text, number):
  """The text with the case of some letters changed: equal texts would stay in one split."""
  bits = f'{number:012b}'
  return ''.join(
    x.upper() if 1 <= i <= 12 and bits[i - 1] == '1' else x for i, x in enumerate(text)
  )


def prose(path, documents=40, text=SENTENCES):
  texts = [varied(' '.join([text] * 4), number) for number in range(documents)]
  path.write_text('\n\n'.join(texts) + '\n')
  return path


def test_pieces_that_are_unknown_are_named(tmp_path):
  """Of the languages that have many of them."""
  pieces = '[PAD] [UNK] [CLS] [SEP] [MASK] the old river crosses town . a small boat follows it'
  (tmp_path / 'vocab.txt').write_text('\n'.join(pieces.split()) + '\n')
  english = prose(tmp_path / 'en.txt', text='the old river crosses the town .')
  mixed = prose(tmp_path / 'zh.txt', text='the 河 crosses 城 .')
  fields = f'data.train=en={english},zh={mixed}', f'tokenizer.path={tmp_path}/vocab.txt'
  found = said(*fields, 'model.vocab_size=16', 'data.seq_length=32', 'corpus.format=lines')
  (unknown,) = (x for x in found if '[UNK]' in x)
  assert unknown.startswith('zh 40% of the pieces are [UNK]: the vocabulary does not fit this text')


@pytest.mark.parametrize('wrapped, form', [(True, 'paragraphs'), (False, 'lines')])
def test_lines_that_are_no_sentences(tmp_path, caplog, wrapped, form):
  text = SENTENCES.replace('. ', '.\n')
  if wrapped:
    for word in ('crosses', 'follows', 'knows'):
      text = text.replace(f' {word}', f'\n{word}')
  else:
    text = SENTENCES
  (tmp_path / 'a.txt').write_text('\n\n'.join(varied(text, number) for number in range(40)))
  fields = 'model.vocab_size=90', 'corpus.rows=single', 'loss.nsp_weight=0'
  (lines,) = said(f'data.train={tmp_path / "a.txt"}', *fields)
  assert ('60% of the lines go on' in lines) == wrapped
  assert ('a line has 3.0 sentences' in lines) != wrapped
  assert f'corpus.format={form}' in lines
  (tmp_path / 'vocab.txt').write_text(
    '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a'])
  )
  arguments = f'--input {tmp_path}/a.txt --vocab {tmp_path}/vocab.txt --out {tmp_path}/out'
  prepare.run(prepare.parser().parse_args([*arguments.split(), '--processes', '1']))
  assert f'--format {form} makes sentences of them' in caplog.text


def test_evaluated_texts_that_are_trained_on_are_counted(vocab, tmp_path, monkeypatch):
  texts = [f'{WORDS[i % 10]} {WORDS[i // 10]}' for i in range(60)]

  def about(evaluated):
    for name, chosen in (('a', texts[:40]), ('b', evaluated)):
      rows = (f'{text}\t{i % 2}\n' for i, text in enumerate(chosen))
      (tmp_path / f'{name}.tsv').write_text('sentence\tlabel\n' + ''.join(rows))
    paths = [f'data.{x}={tmp_path / y}.tsv' for x, y in (('train', 'a'), ('eval', 'b'))]
    given = *paths, f'tokenizer.path={vocab}', 'model.vocab_size=15'
    return [x for x in remarks_on('configs/finetune.py', *given) if 'evaluated' in x]

  assert about(texts[40:]) == about(texts[39:]) == []  # 1 of 21
  (both,) = about([texts[38], texts[39], texts[39], *texts[40:]])
  assert both.startswith('3 of 23 evaluated texts are in the training data, too, ')
  monkeypatch.setattr(remarks, 'COMPARED', 30)  # of 40
  (some,) = about([texts[38], texts[39], texts[39], *texts[40:]])
  assert some == f'at least {both}'


def test_answers_to_rank_may_be_those_of_the_training_data(vocab, tmp_path):
  texts, answers = [f'{x} {y}' for x in WORDS[:6] for y in WORDS[:10]], WORDS[6:10]
  for name, chosen in (('a', texts[:43]), ('b', texts[43:])):
    rows = (f'{text}\t{answers[i % 4]}\n' for i, text in enumerate(chosen))
    (tmp_path / f'{name}.tsv').write_text('question\tanswer\n' + ''.join(rows))
  paths = [f'data.{x}={tmp_path / y}.tsv' for x, y in (('train', 'a'), ('eval', 'b'))]
  given = *paths, f'tokenizer.path={vocab}', 'model.vocab_size=15'
  assert not [x for x in remarks_on('configs/contrastive.py', *given) if 'evaluated' in x]


def test_a_vocabulary_that_the_text_cannot_fill(tmp_path, corpus_file):
  (unused,) = said(f'data.train={corpus_file}', 'model.vocab_size=4000')
  number = int(unused.split('model.vocab_size=')[1].split()[0])
  assert unused.startswith(f'the text gives {number} pieces of 4000')
  assert not said(f'data.train={corpus_file}', f'model.vocab_size={number}')


def test_it_is_said_once_in_one_block_before_the_steps_are_compiled(tmp_path, caplog, monkeypatch):
  caplog.set_level(logging.INFO, 'bert_jax')
  monkeypatch.setattr(setup, 'compiled', None)
  text = prose(tmp_path / 'a.txt')
  overrides = [*small_overrides(text), '--config.model.vocab_size=90']
  with pytest.raises(TypeError, match='not callable'):
    train(c.load('configs/pretrain.py:runlocal', overrides), tmp_path / 'run')
  blocks = [x for x in caplog.records if x.getMessage().startswith('the data and the settings:')]
  assert len(blocks) == 1 and '\n  - a line has 12.0 sentences' in blocks[0].getMessage()
  assert [x for x in caplog.records if x.levelno >= logging.WARNING] == blocks
