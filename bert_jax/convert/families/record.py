"""The record of a family of released models: its config.json keys and its parameter names.

Reading and writing a released model is driven by its record, which the file of its family makes.
The tables that relatives share are here. In names, # stands for the number of a layer.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import InputError, quoted
from bert_jax.files import Path
from bert_jax.tokenizers import Tokenizer

# {field of config.model: its value where a config.json lacks it; None: it must not}.
KEYS: dict[str, Any] = {
  'vocab_size': None,
  'hidden_size': None,
  'num_hidden_layers': None,
  'num_attention_heads': None,
  'intermediate_size': None,
  'max_position_embeddings': None,
  'type_vocab_size': None,
  'layer_norm_eps': 1e-12,
  'initializer_range': 0.02,
  'hidden_dropout_prob': 0.1,
  'attention_probs_dropout_prob': 0.1,
}
SIZES = [field for field, usual in KEYS.items() if usual is None]
USUAL = {field: usual for field, usual in KEYS.items() if usual is not None}
NO_DROPOUT = {'hidden_dropout_prob': 0.0, 'attention_probs_dropout_prob': 0.0}
# {hidden_act in a config.json: ours}. Ours is written as the first of its names.
ACTIVATIONS = {
  'gelu': 'gelu',
  'relu': 'relu',
  'gelu_pytorch_tanh': 'gelu_tanh',
  'gelu_new': 'gelu_tanh',
  'silu': 'swish',
}
# {key of config.json: role} in families that put a text between [CLS] and [SEP].
ENDS = {'bos_token_id': 'cls', 'eos_token_id': 'sep'}


def _given_or_hidden_size(embedding_size: int, hidden_size: int) -> int:
  return embedding_size or hidden_size


def _size_if_narrower(embedding_size: int, hidden_size: int) -> int:
  return 0 if embedding_size == hidden_size else embedding_size


def _hidden_size(embedding_size: int, hidden_size: int) -> int:
  return hidden_size


# {which embeddings have a dense layer to the hidden size: (embedding_size, hidden_size) -> the
# embedding_size of such a model}.
PROJECTIONS: dict[str, Callable[[int, int], int]] = {
  'all': _given_or_hidden_size,
  'narrower': _size_if_narrower,
  'full width': _hidden_size,
}

ATTENTION = 'query', 'key', 'value', 'output'
LAYER = 'attention_LayerNorm', 'intermediate', 'output', 'output_LayerNorm'
EMBEDDINGS = 'word_embeddings', 'position_embeddings', 'token_type_embeddings', 'LayerNorm'
HEADS = {'classifier/dense': 'classifier', 'span/dense': 'qa_outputs'}
# {kind of module: {parameter: ending of its name}}.
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
  shape: str  # our parameter's shape, in the letters of parameter_names.FIELDS
  part: tuple[int, int] = (0, 1)  # (i, n): it is the i-th of n equal parts of the tensor
  is_row: bool = False  # [1, n], where ours is [n]
  # Heads whose pairs of numbers, which rotary positions turn, lie side by side; 0: as here, half a
  # head apart.
  side_by_side: int = 0

  @property
  def axis(self) -> int:
    """The axis of the tensor along which its parts lie: the outputs' axis."""
    return 0 if self.turned else -1


class OtherHead(NamedTuple):
  """A head with our names that computes something else than ours, and is not read."""

  names: tuple[str, ...] = ()  # prefixes of its tensors' names
  parts: tuple[str, ...] = ()  # our parts that are left out, though tensors have their names
  why: str = ''  # why its tensors are not read, a sentence


class Classifier(NamedTuple):
  """The names in some classes of a family with a classifier, if its other models have others."""

  modules: Mapping[str, str]
  mark: str  # ending of the name of a tensor that only such classes have
  ending: str  # of the names of the classes


class Description(NamedTuple):
  """The content of a config.json, in our terms."""

  family: 'ReleasedFamily'
  model: dict[str, Any]  # fields of config.model, as given or as the family implies
  labels: tuple[str, ...]  # from id2label, in order, or ()
  problem: str  # '', regression, single_label_classification or multi_label_classification
  architecture: str  # 'BertForMaskedLM', or ''
  offset: int  # rows of the position table before position 0
  ours: dict[str, Any]  # the content of "bert_jax", which to_huggingface adds
  # What its sequence classifier reads through the pooler: cls, mean (of all tokens), or late: the
  # mean of what the pooler makes of each.
  pooling: str = 'cls'
  begin: str = ''  # the first piece of its targets: cls, or sep; '': it has no decoder
  activation: str = ''  # what the output of a cross-encoder goes through, as torch calls it, or ''
  # How it writes unless it is asked otherwise, as in generation_config.json, {option of our task
  # generate, early_stopping (a beam search's), or ends (ids of the pieces that end a text): value}.
  writing: Mapping[str, Any] = {}
  unread_writing: str = ''  # its other settings that change what it writes, with their values
  cut_side: str = 'right'  # the side on which its tokenizer cuts texts


class Exported(NamedTuple):
  """The properties of a model to be written that decide its family."""

  model: Mapping[str, Any]  # fields of config.model
  parts: Collection[str]  # top-level names of the parameters
  tokenizer: Tokenizer
  tells_apart: bool  # whether the weights tell the two texts of a pair apart
  has_pooler: bool  # whether a pooler is among the parts that are written


class ReleasedFamily(NamedTuple):
  """A family of released models. "Our fields" are fields of config.model."""

  name: str  # the model_type of their config.json
  classes: str  # prefix of their class names: Bert of BertForMaskedLM
  # The names of their tensors. Two or three of our modules may be one of theirs, which holds ours
  # one after the other.
  modules: Mapping[str, str]  # {our module: its name there}
  prefix: str  # prefix of an encoder's tensor names inside a model with a head
  gated: Mapping[str, str] = {}  # {our module: its name} where feed-forward layers have a gate
  classifiers: tuple[Classifier, ...] = ()  # the one with the longer ending first
  places: Mapping[str, Place] = {}  # parameters whose names do not follow from their modules'
  endings: Mapping[str, Mapping[str, str]] = TORCH
  turned: bool = True  # kernels are [out, in]
  # Name in a file -> name in the tables: weight and bias are gamma and beta in some.
  canonical: Callable[[str], str] = lambda name: re.sub(
    r'\.beta$', '.bias', re.sub(r'\.gamma$', '.weight', name)
  )
  tied: tuple[str, ...] = ()  # names of copies of the table of words that a file may hold
  side_by_side: bool = False  # pairs of queries and keys are, see Place
  # fields -> {name: tensor that follows from them and that their files hold}
  buffers: Callable[[Mapping[str, Any]], dict[str, np.ndarray]] = lambda model: {}
  zeros: tuple[str, ...] = ()  # paths that are zeros if a file lacks them
  # Their config.json.
  keys: Mapping[str, str] = {}  # {key: our field} where they differ
  older: Mapping[str, str] = {}  # {another name of a key, which some files have: the key}
  defaults: dict[str, Any] = {}  # {our field: value} where there is no key
  fields: dict[str, Any] = {}  # {our field: value in all of them}, where not as in a BERT
  projects: str = ''  # a key of PROJECTIONS, if embeddings go through a dense layer
  same: Mapping[str, str] = {}  # {our field, where 0 means as another one: that field}
  also: Mapping[str, str] = {}  # {further key: our field, whose value it must have}
  free: tuple[str, ...] = ()  # our fields that it has besides KEYS
  derived: tuple[str, ...] = ()  # our fields that `read` and `write` convert from and to its keys
  unsaid: tuple[str, ...] = ()  # KEYS that it lacks: they have their default
  without_effect: tuple[str, ...] = ()  # our fields whose value changes nothing in these models
  fixed: Mapping[str, tuple | None] = {}  # {option: values that it may have if said; None: any}
  ids: Mapping[str, str] = {}  # {key: role of the token with that id}
  # (path, content with our names and defaults) -> content with our values
  read: Callable[[Path, dict[str, Any]], dict[str, Any]] = lambda path, content: content
  # The inverse of `read`: fields -> {key or our field: value} for values that change.
  write: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda model: {}
  # Their models.
  # Whether a model may be written as one, as far as that does not follow from its fields.
  fits: Callable[[Exported], bool] = lambda exported: True
  lacks: tuple[str, ...] = ()  # endings of classes that it has not, or that compute otherwise
  pooler: tuple[str, ...] = ()  # endings of classes with one, whether or not their head reads it
  no_class: tuple[str, ...] = ()  # endings of classes that transformers lacks, unlike the releases
  pairs: str = 'nsp'  # the task of their head for pairs of texts, a value of corpus.rows
  offset: Callable[[int], int] = lambda pad_id: 0  # rows of the position table before position 0
  counts_offset: bool = False  # max_position_embeddings counts them
  other_head: Callable[[Description, Collection[str]], OtherHead] = lambda *_: OtherHead()
  tokenizer_class: str = 'BertTokenizer'  # for a WordPiece vocabulary
  not_given: str = ''  # the tokenizer output that they do not take

  @property
  def has_decoder(self) -> bool:
    return any(module.startswith('decoder/') for module in self.modules)

  def named_as(self, architecture: str, names: Collection[str] = ()) -> 'ReleasedFamily':
    """The family with the module names of a class. names: of its tensors in a file, if it is read
    from one, by which a classifier is known even if no class is named."""
    fitting = []
    for classifier in self.classifiers:
      is_named = architecture.endswith(classifier.ending)
      if any(name.endswith(classifier.mark) for name in names) if names else is_named:
        fitting.append((is_named, classifier))
    if not fitting:
      return self
    _, best = max(fitting, key=lambda named_and_classifier: named_and_classifier[0])
    return self._replace(modules=best.modules)

  def key_of(self, field: str) -> str:
    """The key in config.json for a field of config.model."""
    return next((key for key, ours in self.keys.items() if ours == field), field)


def layers(
  theirs: str, attention: Sequence[str], others: Sequence[str], tower: str = 'encoder'
) -> dict[str, str]:
  """{our module: its name} for the layers of a tower. theirs: prefix of the names. attention,
  others: their endings, in the order of ATTENTION and LAYER."""
  ours = *(f'attention/{name}' for name in ATTENTION), *LAYER
  names = zip(ours, (*attention, *others), strict=True)
  return {f'{tower}/layer_#/{name}': theirs + ending for name, ending in names}


def renamed(modules: Mapping[str, str], old: str, new: str) -> dict[str, str]:
  """Copies the modules with one word replaced in all their names."""
  return {ours: theirs.replace(old, new) for ours, theirs in modules.items()}


def other_model(path: Path, name: str, value: object, ours: str) -> InputError:
  """The InputError for a config.json with a value that ours cannot have. ours: what it has."""
  said = f'{path} says {name} {quoted(value)}'
  return InputError(f'{said}; {ours}, so it would not be the same model.')


def has_gelu(model: Mapping[str, Any]) -> bool:
  """Whether a model has the activation that heads of some families have, whatever theirs is."""
  return model['hidden_act'] == 'gelu'


def theta_of(path: Path, content: Mapping[str, Any], usual: Any, kind: str = '') -> Any:
  """The rotary theta of rope_parameters, for one kind of layers if they differ, or the usual one;
  InputError for another rotation."""
  ropes, older = (content.get(name) or {} for name in ('rope_parameters', 'rope_scaling'))
  rope, where = ropes, ''
  if kind:
    rope, where = ropes.get(kind) or {}, f' of {kind}'
  for said in rope, older:
    scaling = said.get('rope_type', said.get('type', 'default'))
    if scaling != 'default':
      raise other_model(path, f'rope_type{where}', scaling, 'our encoder has default only')
  theta = rope.get('rope_theta')
  if not theta and not kind:
    theta = content.get('rope_theta')
  return theta or usual


def rope(theta: float) -> dict[str, Any]:
  """The rope_parameters that say a theta."""
  return {'rope_type': 'default', 'rope_theta': theta}


def activation_name(ours: str, usual: str) -> str:
  """The name in config.json of an activation; the family's `usual` one if it means the same. Raises
  an InputError for one that transformers may not know."""
  known = [theirs for theirs, kind in ACTIVATIONS.items() if kind == ours]
  if not known:
    raise InputError(
      f'model.hidden_act={ours} has no name in config.json; if transformers has it, add it to '
      'ACTIVATIONS of convert/families/record.py.'
    )
  return usual if usual in known else known[0]
