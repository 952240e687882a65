"""The families of released models that are read and written, one file for each."""

from bert_jax.convert.families.albert import ALBERT
from bert_jax.convert.families.bart import BART
from bert_jax.convert.families.bert import BERT
from bert_jax.convert.families.deberta import DEBERTA
from bert_jax.convert.families.distilbert import DISTILBERT
from bert_jax.convert.families.electra import ELECTRA
from bert_jax.convert.families.eurobert import EUROBERT
from bert_jax.convert.families.fnet import FNET
from bert_jax.convert.families.gpt import GPT2, OPENAI_GPT
from bert_jax.convert.families.modernbert import MODERNBERT
from bert_jax.convert.families.mpnet import MPNET
from bert_jax.convert.families.nomic import NOMIC
from bert_jax.convert.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from bert_jax.convert.families.roformer import ROFORMER
from bert_jax.convert.families.t5 import T5

# A model of ours is written as the one that it differs least from, of several as the first.
_ALL = BART, GPT2, FNET, DEBERTA, T5, NOMIC, ROFORMER, EUROBERT, MODERNBERT, ALBERT, ELECTRA
_ALL += MPNET, CAMEMBERT, XLM_ROBERTA, ROBERTA, DISTILBERT, BERT, OPENAI_GPT
FAMILIES = {family.name: family for family in _ALL}
