"""What is said before the first step about the data and the settings of a run."""

import pytest
from small_tables import WORDS

from bert_jax import config as c
from bert_jax.tasks import TASKS
from bert_jax.text import documents
from bert_jax.tokenizers import run_tokenizer

SENTENCES = 'The old river crosses the town. A small boat follows it. Nobody knows the long road.'


def remarks_on(config, *overrides):
  """The sentences about a run of a config."""
  config = c.load(config, [f'--config.{x}' for x in overrides])
  task = TASKS[config.objective]
  config = task.resolve(config)
  tokenizer = run_tokenizer.load_or_train(config, None, lambda: task.texts(config))
  return task.remarks(config, tokenizer, task.sources(config, tokenizer))


def said(*overrides):
  found = remarks_on('configs/pretrain.py:runlocal', 'corpus.eval_share=0.2', *overrides)
  return [x for x in found if not x.startswith('so few tokens')]


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


@pytest.fixture
def about(vocab, tmp_path):
  """The sentences about texts and labels: about({split: [(text, label), ..]}, field, ..)."""

  def remarks_on_table(splits, *fields):
    given = [f'tokenizer.path={vocab}', 'model.vocab_size=15', *fields]
    for split, rows in splits.items():
      path = tmp_path / f'{split}.tsv'
      path.write_text('sentence\tlabel\n' + ''.join(f'{x}\t{y}\n' for x, y in rows))
      given.append(f'data.{split}={path}')
    return remarks_on('configs/finetune.py', *given)

  return remarks_on_table


ELEVEN = [str(k) for k in range(11)]
PAIRS = [(f'{WORDS[i % 10]} {WORDS[i // 10]}', i) for i in range(60)]


@pytest.mark.parametrize(
  'labels, fields, number',
  [
    (ELEVEN, '', 11),
    (ELEVEN[1:], '', 0),
    (ELEVEN, 'table.regression=true', 0),
    ([*ELEVEN, 'a'], '', 0),
  ],
)
def test_labels_that_are_numbers(about, labels, fields, number):
  found = about({'train': [(text, labels[i % len(labels)]) for text, i in PAIRS]}, *fields.split())
  assert [x[:16] for x in found] == [f'all {number} labels are'[:16]] * bool(number)


@pytest.mark.parametrize(
  'cut, fields, share, field',
  [
    (2, 'data.seq_length=10', 0, ''),
    (3, 'data.seq_length=10', 8, 'data.seq_length'),
    (20, 'task.max_length=10', 50, 'task.max_length'),
    (20, 'task.max_length=10 table.long_texts=windows', 0, ''),
  ],
)
def test_that_many_texts_are_cut(about, cut, fields, share, field):
  rows = [(f'{WORDS[k % 10]} ' * (9 if k < cut else 1), 'ab'[k % 2]) for k in range(40)]
  found = about({'train': rows}, *fields.split())
  assert len(found) == bool(share)
  assert not share or (found[0].startswith(f'{share}% of the texts') and field in found[0])


@pytest.mark.parametrize('known', [0, 1, 2])
def test_evaluated_texts_that_are_trained_on(about, known):
  """Of 20 or 21 others."""
  labelled = [(text, i % 2) for text, i in PAIRS]
  evaluated = [*labelled[39:40] * known, *labelled[40:]]
  found = [x for x in about({'train': labelled[:40], 'eval': evaluated}) if 'by heart' in x]
  assert [f'by heart: {known} (of' in x for x in found] == [True] * bool(known)


@pytest.mark.parametrize('numbers, form, mean', [
  ([9, 2], 'auto', '6'), ([4, 4], 'auto', ''), ([30], 'auto', ''), ([9, 2], 'paragraphs', ''),
])  # fmt: skip
def test_files_that_hold_many_documents(tmp_path, numbers, form, mean):
  """Whatever rows are made."""
  for i, number in enumerate(numbers):
    texts = [
      f'{SENTENCES}\n{WORDS[i]} {WORDS[k % 10]} {WORDS[k // 10]} ends it.' for k in range(number)
    ]
    (tmp_path / f'{i}.txt').write_text('\n\n'.join(texts))
  for fields in [], ['corpus.rows=full', 'loss.nsp_weight=0']:
    given = f'data.train={tmp_path}/*.txt', f'data.eval={tmp_path}/0.txt', f'corpus.format={form}'
    if form == 'paragraphs' and not fields:
      continue  # two documents are too few for pairs
    found = [x for x in said(*given, *fields) if x.startswith('a file holds')]
    assert [f'a file holds {mean} documents on average' in x for x in found] == [True] * bool(mean)


@pytest.mark.parametrize('length, is_cut', [(16, True), (512, False)])
def test_tokens_of_examples_that_are_cut(tmp_path, length, is_cut):
  text = f'data.train={prose(tmp_path / "a.txt", text="the old river crosses the town " * 5)}'
  found = said(text, f'data.seq_length={length}')
  assert [x.endswith('raise data.seq_length.') for x in found if ' cut to fit' in x] == [
    True
  ] * is_cut


@pytest.mark.parametrize('spec', ['{}/{}.txt', 'x={}/{}.txt,y={}/{}y.txt'])
@pytest.mark.parametrize('again', [0, 1, 3])
def test_evaluated_documents_that_are_trained_on(tmp_path, again, spec):
  texts = [f'{SENTENCES}\n{WORDS[i % 10]} {WORDS[i // 10]} ends it.' for i in range(38)]
  (tmp_path / 'a.txt').write_text('\n\n'.join(texts[:30]))
  (tmp_path / 'b.txt').write_text('\n\n'.join(texts[30 - again :]))
  (tmp_path / 'ay.txt').write_text('\n\n'.join(texts[:2]).upper())
  (tmp_path / 'by.txt').write_text('\n\n'.join(texts[2:4]).upper())
  train, evaluated = (spec.format(tmp_path, x, tmp_path, x) for x in 'ab')
  found = said(f'data.train={train}', f'data.eval={evaluated}')
  told = f'evaluated documents that are in the training text, too: {again}; leave'
  assert [told in x for x in found if 'training text, too' in x] == [True] * bool(again)


@pytest.mark.parametrize('documents, nats', [(40, '0.14'), (900, '')])
def test_few_tokens_that_are_held_out(tmp_path, documents, nats):
  data = f'data.train={prose(tmp_path / "a.txt", documents)}'
  found = remarks_on('configs/pretrain.py:runlocal', 'corpus.eval_share=0.2', data)
  assert [nats in x for x in found if x.startswith('so few tokens')] == [True] * bool(nats)


@pytest.mark.parametrize('size, least', [(1, 0), (2, 41), (3, 51)])
def test_few_documents_of_which_a_long_one_is_held_out(tmp_path, size, least):
  others = [f'{SENTENCES}\n{word} ends it.' for word in WORDS[:2]]
  tried = (f'{SENTENCES}\n' * size + f'{word} is last.' for word in WORDS)
  drawn = lambda text: documents.text_hash(text.split('\n'))
  texts = [next(x for x in tried if drawn(x) < min(map(drawn, others))), *others]
  (tmp_path / 'a.txt').write_text('\n\n'.join(texts))
  fields = 'corpus.eval_share=0.001', 'corpus.rows=full', 'loss.nsp_weight=0'
  found = remarks_on('configs/pretrain.py:runlocal', f'data.train={tmp_path}/a.txt', *fields)
  shares = [int(x.partition('%')[0]) for x in found if '% of the text is held out' in x]
  assert len(shares) == bool(least) and all(least <= share < least + 10 for share in shares)


@pytest.mark.parametrize('again, others', [(0, 0), (3, 0), (3, 1), (5, 3)])
def test_texts_that_stand_there_again_with_another_label(about, again, others):
  """Of 60 texts some stand there twice, and of these some with another label."""
  labelled = [(text, i % 2) for text, i in PAIRS]
  twice = [(text, label ^ (k < others)) for k, (text, label) in enumerate(labelled[:again])]
  found = about({'train': labelled + twice})
  said = f'training texts that are read alike and have another label: {others}, such as '
  said += f"'{PAIRS[0][0]}'; keep one of the two, or read more of long texts (data.seq_length)."
  assert found == [said] * bool(others)
  assert not about({'train': labelled + twice}, 'table.long_texts=windows')
  empty = [('', 0), ('', 1), (' ', 0)]
  assert about({'train': labelled + twice + empty}) == found
  assert not about({'train': labelled + twice}, 'table.regression=true')


@pytest.mark.parametrize('labels, said', [
  ('ab', ''),
  (('Ab', 'aB', 'b', 'c'), "alone: 2; write 'Ab', 'aB' in one way."),
])  # fmt: skip
def test_labels_that_differ_by_case_alone(about, labels, said):
  found = about({'train': [(text, labels[i % len(labels)]) for text, i in PAIRS]})
  assert [x.partition(' in case ')[2] for x in found] == [said] * bool(said)


@pytest.mark.parametrize('fields', ['', 'data.seq_length=10 table.long_texts=windows'])
@pytest.mark.parametrize('alone', [0, 1, 30, 31, 60])
def test_labels_that_one_text_alone_has(about, alone, fields):
  labelled = [(f'{text} ' * 9, f'a{i}' if i < alone else i % 2) for text, i in PAIRS]
  found = about({'train': labelled}, *fields.split())
  fix = 'may be the wrong way round' if alone > 30 else "with 'a0'"
  assert [f' no other has: {alone}; ' in x and fix in x for x in found] == [True] * bool(alone)


@pytest.mark.parametrize('number, share', [(99, 10), (30, 18), (101, 0)])
def test_few_evaluated_examples(about, number, share):
  labelled = [
    (f'{WORDS[i % 10]} {WORDS[i // 10 % 10]} {WORDS[i // 100]}', i % 2) for i in range(160)
  ]
  found = about({'train': labelled[:50], 'eval': labelled[-number:]})
  assert [f'uncertain by {share}%' in x for x in found] == [True] * bool(share)


@pytest.mark.parametrize('number', [22, 26, 31, 60])
def test_a_share_that_holds_out_far_more_or_less(about, caplog, number):
  labelled = [(text, i % 2) for text, i in PAIRS[:number]]
  held_out = sum(documents.held_out([text], 0.2) for text, _ in labelled)
  about({'train': labelled}, 'table.eval_share=0.2')
  told = f'table.eval_share=0.2 holds out {held_out} of {number} examples'
  is_far = abs(held_out - number / 5) >= number / 10
  assert caplog.text.count('table.eval_share=0.2 holds out') == is_far == (told in caplog.text)


@pytest.mark.parametrize('labels, absent', [('aba', 'c'), ('cab', ''), ('b', "a', 'c")])
def test_labels_that_no_evaluated_example_has(about, caplog, labels, absent):
  about({'train': [(text, 'abc'[i % 3]) for text, i in PAIRS], 'eval': zip(WORDS, labels)})
  said = f"eval: no example has the label '{absent}', of which nothing is scored"
  assert [x for x in caplog.messages if ' no example ' in x] == [said] * bool(absent)


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
def test_lines_that_are_no_sentences(tmp_path, wrapped, form):
  text = SENTENCES.replace('. ', '.\n')
  if wrapped:
    for word in ('crosses', 'follows', 'knows'):
      text = text.replace(f' {word}', f'\n{word}')
  else:
    text = SENTENCES
  (tmp_path / 'a.txt').write_text('\n\n'.join(varied(text, number) for number in range(40)))
  fields = 'model.vocab_size=90', 'corpus.rows=single', 'loss.nsp_weight=0'
  (lines,) = said(f'data.train={tmp_path / "a.txt"}', *fields)
  assert f'corpus.format={form}' in lines


@pytest.mark.parametrize('alone', [35, 37])
def test_documents_of_one_sentence(tmp_path, alone):
  """Of 40 documents so many."""
  one, *more = varied(SENTENCES, 3).split('. ')
  texts = [f'{one} {k}.' + f'\n{more[0]}.' * (k >= alone) for k in range(40)]
  (tmp_path / 'a.txt').write_text('\n\n'.join(texts))
  data = f'data.train={tmp_path / "a.txt"}', 'model.vocab_size=90', 'corpus.format=sentences'
  found = [x for x in said(*data) if 'which none follows' in x]
  assert [x[:3] for x in found] == ['92%'] * (alone == 37)
  single = said(*data, 'corpus.rows=single', 'loss.nsp_weight=0')
  assert not any('which none follows' in x for x in single)
