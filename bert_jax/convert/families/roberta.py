"""RoBERTa, XLM-R and CamemBERT: a BERT whose positions begin after the id of [PAD].

They differ in their vocabularies: bytes, SentencePiece in 100 languages, SentencePiece in French.
"""

from bert_jax.convert.families.bert import ENCODER, POOLER
from bert_jax.convert.families.record import (
  ENDS,
  HEADS,
  Classifier,
  OtherHead,
  ReleasedFamily,
  has_gelu,
  renamed,
)

_MODULES = renamed(ENCODER | POOLER, 'bert.', 'roberta.') | {
  'mlm/transform': 'lm_head.dense',
  'mlm/LayerNorm': 'lm_head.layer_norm',
  'mlm': 'lm_head',
  'mlm/': 'lm_head.decoder',
}
# Its sequence classifier has our pooler as a dense layer with tanh over <s>, and no other pooler.
_IN_CLASSIFIER = _MODULES | HEADS
_IN_CLASSIFIER |= {'pooler/dense': 'classifier.dense', 'classifier/dense': 'classifier.out_proj'}
_WHY = 'its masked-word head predicts with gelu, ours with its hidden_act'
_MLM = OtherHead(('lm_head.',), ('mlm',), _WHY)


def _fits(exported):
  predicts_with_gelu = 'mlm' not in exported.parts or has_gelu(exported.model)
  is_its_notation = exported.tokenizer.between == 2 and not exported.tells_apart
  return predicts_with_gelu and is_its_notation


ROBERTA = ReleasedFamily(
  name='roberta',
  classes='Roberta',
  modules=_MODULES | HEADS,
  prefix='roberta.',
  classifiers=(
    Classifier(_IN_CLASSIFIER, 'classifier.out_proj.bias', 'ForSequenceClassification'),
  ),
  ids=ENDS,
  write=lambda model: {'type_vocab_size': 1},  # one row for both texts
  fits=_fits,
  pooler=('Model', 'ForMultipleChoice'),
  offset=lambda pad_id: pad_id + 1,
  counts_offset=True,
  other_head=lambda said, _: OtherHead() if has_gelu(said.model) else _MLM,
  not_given='token_type_ids',  # AutoTokenizer's are 1 for a second text, and the table has one row
)


def _is_unigram(tokenizer):
  return getattr(tokenizer, 'content', {}).get('model', {}).get('type') == 'Unigram'


XLM_ROBERTA = ROBERTA._replace(
  name='xlm-roberta',
  classes='XLMRoberta',
  fits=lambda exported: ROBERTA.fits(exported) and _is_unigram(exported.tokenizer),
)
CAMEMBERT = XLM_ROBERTA._replace(
  name='camembert',
  classes='Camembert',
  fits=lambda exported: XLM_ROBERTA.fits(exported) and '<s>NOTUSED' in exported.tokenizer.pieces,
)
