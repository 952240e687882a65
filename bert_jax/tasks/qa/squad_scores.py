"""The scores of the official scripts of SQuAD 1.1, SQuAD 2.0 and CMRC 2018, in percent.

  squad, squad2    evaluate-v1.1.py and evaluate-v2.0.py (Rajpurkar et al. 2016, 2018): exact match
                   and F1 over words with the best gold answer, in lower case and without
                   punctuation and articles
  cmrc             cmrc2018_evaluate.py (Cui et al. 2019): exact match, and F1 over the longest
                   common run of segments, which are Chinese characters and NLTK's words

One difference: CMRC's script finds sentences with a trained model of NLTK and splits off the full
stop of each. Here the text between two Chinese characters is one sentence: of the 9,657 answers of
CMRC's dev set, 9 contain a full stop and a blank, all after an initial ('Henry A. Walsh').

predictions: a text for each question. golds: a list of texts for each question, in the same order.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

_PUNCTUATION = str.maketrans('', '', string.punctuation)
_ARTICLES = re.compile(r'\b(a|an|the)\b')


def normalised(text: str) -> str:
  """SQuAD's normalisation: lower case, no ASCII punctuation, no articles, single blanks."""
  return ' '.join(_ARTICLES.sub(' ', text.lower().translate(_PUNCTUATION)).split())


def word_f1(prediction: str, gold: str) -> float:
  """F1 over the words of two normalised texts; 0 if they share none, even if both are empty."""
  predicted, right = prediction.split(), gold.split()
  return _f1((Counter(predicted) & Counter(right)).total(), len(predicted), len(right))


def squad(predictions: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, float]:
  """SQuAD 1.1: {exact, f1}; every question has a gold answer."""
  return _scored(predictions, golds, normalised, _normalised_f1)


def _normalised_f1(prediction, gold):
  return word_f1(normalised(prediction), normalised(gold))


def squad2(predictions: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, float]:
  """SQuAD 2.0: {exact, f1} of all questions, and of questions with an answer (HasAns_) and without
  (NoAns_), whose gold is [] and whose right prediction is ''."""
  exact, f1 = _each_score(predictions, golds)
  answerable = np.array([bool(gold) for gold in golds])
  out = {}
  for name, chosen in (('', answerable >= 0), ('HasAns_', answerable), ('NoAns_', ~answerable)):
    if chosen.any():
      out |= {f'{name}exact': _percent(exact[chosen]), f'{name}f1': _percent(f1[chosen])}
  return out


def best_thresholds(
  answers: Sequence[str], golds: Sequence[Sequence[str]], odds: Sequence[float]
) -> dict[str, float]:
  """The best SQuAD 2.0 scores over all thresholds on the odds of 'no answer', best_exact, best_f1,
  and the thresholds that reach them, best_exact_thresh, best_f1_thresh. answers: the best texts
  that are not empty, which are the predictions where the odds are not above the threshold."""
  order, out = np.argsort(odds, kind='stable'), {}
  answerable = np.array([bool(gold) for gold in golds])
  for name, scores in zip(('exact', 'f1'), _each_score(answers, golds), strict=True):
    wrong = np.array([-1.0 if text else 0.0 for text in answers])
    gain = np.where(answerable, scores, wrong)[order]
    none = np.sum(~answerable)  # the score if every question is said to have no answer
    totals = np.cumsum(np.append(none, gain))
    best = int(np.argmax(totals))
    out[f'best_{name}'] = float(100 * totals[best] / len(odds))
    out[f'best_{name}_thresh'] = float(odds[order[best - 1]]) if best else 0.0
  return out


def _each_score(predictions, golds):
  """SQuAD 2.0 for each question: (exact, f1), two arrays; two empty texts agree."""
  exact, f1 = np.zeros((2, len(golds)))
  for i, (prediction, gold) in enumerate(zip(predictions, golds, strict=True)):
    prediction = normalised(prediction)
    gold = [text for text in map(normalised, gold) if text] or ['']
    exact[i] = prediction in gold
    f1[i] = exact[i] or max(word_f1(prediction, text) for text in gold)
  return exact, f1


# -- CMRC 2018 -------------------------------------------------------------------------------------

_MARKS = set('-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』')  # removed by its script
_CHARACTER = re.compile('([\u4e00-\u9fa5])')
# The replacements of NLTK's word_tokenize, in their order, for a sentence in lower case; those for
# the marks above are left out.
_NLTK = [
  ('([«‘„])', r' \1 '),
  ('^"', ' `` '),
  (r'([ (\[{<])("|\'\')', r'\1 `` '),
  (r"(')(?!re|ve|ll|m|t|s|d|n)(\w)\b", r'\1 \2'),
  (r'([^.])(\.)([\])}>"\'» ]*)\s*$', r'\1 \2 \3 '),
  (r'(,)(?!\d|$)|(,)$', ' , '),
  ('(\\.{2,}|[;@#$%&?!\u2012-\u2015])', r' \1 '),
  (r"([^'])' ", r"\1 ' "),
  (r'([\]\[(){}<>])', r' \1 '),
  ('$|^', ' '),
  ('(»)', r' \1 '),
  (r'\'\'|"', " '' "),
  (r'\s+', ' '),
  (r"([^' ])('[smd]|') ", r'\1 \2 '),
  (r"([^' ])('ll|'re|'ve|n't) ", r'\1 \2 '),
  (r"\b(can(?=not\b)|d(?='ye\b)|gim(?=me\b)|gon(?=na\b)|got(?=ta\b)|lem(?=me\b))", r' \1 '),
  (r"\b(more(?='n\b)|wan(?=na\s))", r' \1 '),
  (r" ('t)(?=is\b|was\b)", r' \1 '),
]


def segments(text: str) -> list[str]:
  """CMRC's segments of a text: its Chinese characters and the words between them, no marks."""
  out = []
  for i, part in enumerate(_CHARACTER.split(_bare(text))):
    for pattern, replacement in _NLTK if i % 2 == 0 else ():
      part = re.sub(pattern, replacement, part)
    out += part.split()
  return out


def segment_f1(prediction: str, gold: str) -> float:
  """F1 of the longest common run of the segments of two texts."""
  predicted, right = segments(prediction), segments(gold)
  match = SequenceMatcher(None, predicted, right, autojunk=False).find_longest_match()
  return _f1(match.size, len(predicted), len(right))


def cmrc(predictions: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, float]:
  """CMRC 2018: {exact, f1}; every question has a gold answer."""
  return _scored(predictions, golds, _bare, segment_f1)


def _bare(text):
  return ''.join(c for c in text.lower().strip() if c not in _MARKS)


def _scored(predictions, golds, plain, f1_of):
  """{exact, f1}, the best of the gold answers of each question; exact: plain(text) is the same."""
  exact, f1 = [], []
  for prediction, gold in zip(predictions, golds, strict=True):
    exact.append(plain(prediction) in map(plain, gold))
    f1.append(max(f1_of(prediction, text) for text in gold))
  return {'exact': _percent(exact), 'f1': _percent(f1)}


def _f1(shared, predicted, right):
  if not shared:
    return 0.0
  precision, recall = shared / predicted, shared / right
  return 2 * precision * recall / (precision + recall)


def _percent(scores):
  return float(100 * np.mean(scores))
