"""The record of a family of released models: what its files say and what its parameters are called.

Whoever reads or writes a released model asks its record, which the file of its family makes. The
tables that relatives share are here. In names, # stands for the number of a layer.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import InputError
from bert_jax.tokenizers import Tokenizer

SIZES = (
  'vocab_size',
  'hidden_size',
  'num_hidden_layers',
  'num_attention_heads',
  'intermediate_size',
  'max_position_embeddings',
  'type_vocab_size',
)
OTHERS = {
  'layer_norm_eps': 1e-12,
  'initializer_range': 0.02,
  'hidden_dropout_prob': 0.1,
  'attention_probs_dropout_prob': 0.1,
}
# {hidden_act of a config.json: ours}. Ours is written as the first of its names here.
ACTIVATIONS = {
  'gelu': 'gelu',
  'gelu_pytorch_tanh': 'gelu_tanh',
  'gelu_new': 'gelu_tanh',
  'relu': 'relu',
  'silu': 'swish',
  'swish': 'swish',
}
# Token ids of a config.json where a text stands between the pieces [CLS] and [SEP].
ENDS = {'bos_token_id': 'cls', 'eos_token_id': 'sep'}

ATTENTION = 'query', 'key', 'value', 'output'
LAYER = 'attention_LayerNorm', 'intermediate', 'output', 'output_LayerNorm'
EMBEDDINGS = 'word_embeddings', 'position_embeddings', 'token_type_embeddings', 'LayerNorm'
HEADS = {'classifier/dense': 'classifier', 'span/dense': 'qa_outputs'}
# {kind of module: {parameter: how its name ends}}.
TORCH = {
  'embed': {'embedding': '.weight'},
  'norm': {'scale': '.weight', 'bias': '.bias'},
  'dense': {'kernel': '.weight', 'bias': '.bias'},
  'bias': {'bias': '.bias'},
  'decoder': {'decoder': '.weight'},
}


class Place(NamedTuple):
  """How a parameter is stored in the files of a family."""

  name: str
  turned: bool  # transposed: [out, in], where ours is [in, out]
  shape: str  # of our parameter, in the letters of parameter_names.FIELDS
  part: tuple[int, int] = (0, 1)  # (i, n): it is the i-th of n equal parts of the tensor
  is_row: bool = False  # [1, n], where ours is [n]

  @property
  def axis(self) -> int:
    """The axis of the tensor along which its parts lie, which is the axis of the outputs."""
    return 0 if self.turned else -1


class OtherHead(NamedTuple):
  """A head that computes something else than ours under the same names, and is not used."""

  names: tuple[str, ...] = ()  # what the names of its tensors begin with
  parts: tuple[str, ...] = ()  # our parts that are not made of them
  why: str = ''  # the sentence about each of its tensors


class Classifier(NamedTuple):
  """The names in a sequence classifier, where they differ from those beside other heads."""

  modules: Mapping[str, str]
  mark: str  # how the name of a tensor ends that only such a classifier has
  endings: tuple[str, ...]  # of the classes that are one


class Description(NamedTuple):
  """What a config.json says."""

  family: 'ReleasedFamily'
  model: dict[str, Any]  # fields of config.model, as it says or the family implies
  labels: tuple[str, ...]  # of id2label, in order, or ()
  problem: str  # '', regression, single_label_classification or multi_label_classification
  architecture: str  # 'BertForMaskedLM', or ''
  offset: int  # rows of the position table that stand before position 0
  ours: dict[str, Any]  # what is under "bert_jax": what to_huggingface wrote besides
  pooling: str = 'cls'  # what its sequence classifier reads: cls, or mean
  begin: str = ''  # what its targets begin with: cls, or sep; '': it writes none


class Exported(NamedTuple):
  """A model of ours that is to be written: what decides as a model of which family."""

  model: Mapping[str, Any]  # fields of config.model
  parts: Collection[str]  # of the parameters
  tokenizer: Tokenizer
  tells_apart: bool  # do the weights tell the two texts of a pair apart?
  has_pooler: bool  # is a pooler among the parts that are written?


def torch_name(name: str, layers: int) -> str:
  """A tensor's name without the prefixes of wrappers, and with weight and bias for gamma, beta."""
  del layers
  short = re.sub(r'^(module\.)?(_orig_mod\.)?(model\.)?', '', name)
  return re.sub(r'\.beta$', '.bias', re.sub(r'\.gamma$', '.weight', short))


class ReleasedFamily(NamedTuple):
  """The models of a family. `fields` and the like name our fields of config.model."""

  name: str  # the model_type of their config.json
  classes: str  # what their classes are called before 'ForMaskedLM' and such
  # What their tensors are called. Two or three of our modules may be one of theirs, which holds
  # ours one after the other.
  modules: Mapping[str, str]  # {our module: its name there}
  prefix: str  # of the names of an encoder's tensors inside a model with a head
  relatives: tuple[str, ...] = ()  # other model_types of the same models
  classifier: Classifier | None = None
  places: Mapping[str, Place] = {}  # of parameters whose names do not follow from the modules'
  endings: Mapping[str, Mapping[str, str]] = TORCH
  turned: bool = True  # kernels are [out, in]
  canonical: Callable[[str, int], str] = torch_name  # (name in a file, layers) -> that of a table
  tied: tuple[str, ...] = ()  # names of copies of the table of words that a file may hold
  zeros: tuple[str, ...] = ()  # paths that a file may lack, and are then zeros
  heads_apart: bool = False  # attention heads may have an axis of their own, [D, H, d] for [D, D]
  # What their config.json says.
  keys: Mapping[str, str] = {}  # {key: our field} where they differ
  defaults: Mapping[str, Any] = {}  # {our field: value} where there is no key
  fields: Mapping[str, Any] = {}  # {our field: value in all of them}, where not as in a BERT
  free: tuple[str, ...] = ()  # our fields that it says besides SIZES and OTHERS
  derived: tuple[str, ...] = ()  # the same in other words, which `read` and `write` know
  unsaid: tuple[str, ...] = ()  # SIZES and OTHERS that it does not say: they have their default
  without_effect: tuple[str, ...] = ()  # our fields whose value changes nothing in these models
  fixed: Mapping[str, tuple] = {}  # {option: the values that it may have}
  ids: Mapping[str, str] = {}  # {key: role of the token with that id}
  # (path, content with our names and defaults) -> the same with our values
  read: Callable[[Path, dict[str, Any]], dict[str, Any]] = lambda path, content: content
  # Its inverse: fields -> {key or our field: value} of what is not said as such.
  write: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda model: {}
  # -> (field, its value there) of a value that config.json cannot say, or None
  refusal: Callable[[Exported], tuple[str, Any] | None] = lambda exported: None
  # What their models are.
  fits: Callable[[Exported], bool] = lambda exported: False  # is a model of ours written as one?
  pooler: tuple[str, ...] = ()  # endings of classes with one, whether or not their head reads it
  pairs: str = 'nsp'  # what their head for pairs of texts says, as corpus.rows
  offset: Callable[[int], int] = lambda pad_id: 0  # rows of the position table before position 0
  counts_offset: bool = False  # max_position_embeddings counts them
  other_head: Callable[[Description, Collection[str]], OtherHead] = lambda *_: OtherHead()
  tokenizer_class: str = 'BertTokenizer'  # of a WordPiece
  not_given: str = ''  # the input that they have not
  continues: bool = False  # they are given texts to continue, which nothing ends

  @property
  def has_decoder(self) -> bool:
    return any(module.startswith('decoder/') for module in self.modules)

  def named_as_classifier(self) -> 'ReleasedFamily':
    """The family with the names that its sequence classifiers have."""
    return self._replace(modules=self.classifier.modules)

  def key_of(self, field: str) -> str:
    """What config.json calls a field of config.model."""
    return next((key for key, ours in self.keys.items() if ours == field), field)

  def default(self, field: str) -> Any:
    """The value of one of SIZES or OTHERS where config.json has none."""
    return self.defaults.get(field, OTHERS.get(field))


def layers(
  theirs: str, attention: Sequence[str], others: Sequence[str], tower: str = 'encoder'
) -> dict[str, str]:
  """{our module: its name} of the layers of a tower. theirs: what the names begin with. attention,
  others: how they end, in the order of ATTENTION and LAYER."""
  ours = [*(f'attention/{name}' for name in ATTENTION), *LAYER]
  names = zip(ours, (*attention, *others), strict=True)
  return {f'{tower}/layer_#/{name}': theirs + ending for name, ending in names}


def renamed(modules: Mapping[str, str], old: str, new: str) -> dict[str, str]:
  """The modules with another word in all their names."""
  return {ours: theirs.replace(old, new) for ours, theirs in modules.items()}


def activation_name(ours: str, usual: str) -> str:
  """What config.json calls an activation of ours: the usual name of a family if it is this one."""
  known = [theirs for theirs, kind in ACTIVATIONS.items() if kind == ours]
  if not known:
    raise InputError(
      f'model.hidden_act is {ours}, which no config.json of Hugging Face says here, so this model '
      'cannot be written; use it with bert_jax.predict.'
    )
  return usual if usual in known else known[0]
