"""Faults put in by hand: sentence vectors, their losses, scores, search."""

OBJECTIVE = 'bert_jax/objectives/contrastive.py'
TASK = 'bert_jax/tasks/contrastive/task.py'
SEARCH = 'bert_jax/predict/search.py'
FORMULA = 'tests/test_contrastive.py::test_the_loss_of_a_batch_is_that_of_the_formula'
MASKED = 'tests/test_contrastive.py::test_texts_that_are_no_negatives_are_masked_and_counted'
ORDER = 'tests/test_contrastive.py::test_pairs_with_scores_are_put_in_their_order'
RANKS = 'tests/test_contrastive.py::test_ranks_of_paragraphs_by_hand'
ITEMS = 'tests/test_contrastive.py::test_items_share_a_row_and_equal_texts_have_equal_numbers'
KEPT = 'tests/test_search.py::test_vectors_of_another_model_or_pooling_are_not_used'

MUTANTS = [
  (
    'hard negatives stand before the positives of the batch',
    OBJECTIVE,
    'candidates_CD = vectors_PKD[:, 1:].swapaxes(0, 1).reshape(-1, D)',
    'candidates_CD = vectors_PKD[:, 1:].reshape(-1, D)',
    FORMULA,
  ),
  (
    'similarities are multiplied by the temperature',
    OBJECTIVE,
    'temperature**-1 * jnp.einsum(',
    'temperature * jnp.einsum(',
    FORMULA,
  ),
  (
    'texts that are not there are negatives',
    OBJECTIVE,
    'others_PC = (there_C > 0) & ~own_PC',
    'others_PC = ~own_PC',
    FORMULA,
  ),
  (
    'a positive that occurs again stays a negative',
    OBJECTIVE,
    'same_PP @ positive_PC > 0) | (ids_C == anchors_P[:, None])',
    'same_PP @ positive_PC < 0) | (ids_C == anchors_P[:, None])',
    MASKED,
  ),
  (
    'other positives of an anchor are its negatives',
    OBJECTIVE,
    'same_PP = (anchors_P[:, None] == anchors_P).astype(jnp.float32)',
    'same_PP = jnp.eye(P)',
    MASKED,
  ),
  (
    'widths are scaled before they are cut',
    OBJECTIVE,
    'loss(unit(part_PKD) if self.normalize else part_PKD, *arguments, self.temperature)',
    'loss((unit(vectors_PKD) if self.normalize else vectors_PKD)[..., :width], *arguments, '
    'self.temperature)',
    'tests/test_contrastive.py::test_the_losses_of_widths_add_up_over_cut_vectors',
  ),
  (
    'all chunks drop the same',
    OBJECTIVE,
    'jax.random.fold_in(rng, i))',
    'jax.random.fold_in(rng, 0 * i))',
    'tests/test_contrastive.py::test_the_gradient_in_chunks_has_the_dropout_of_its_vectors',
  ),
  (
    'all chunks are kept for the gradient',
    OBJECTIVE,
    '    @jax.checkpoint\n    def of_chunk(part):',
    '    def of_chunk(part):',
    'tests/test_contrastive.py::test_chunks_take_the_memory_of_one',
  ),
  (
    'vectors that are no numbers come first',
    TASK,
    'np.sum(~(others < best))',
    'np.sum(others >= best)',
    RANKS,
  ),
  (
    'chunks come back as they lie',
    OBJECTIVE,
    'vectors = jax.lax.map(of_chunk, parts).swapaxes(0, 1)',
    'vectors = jax.lax.map(of_chunk, parts)',
    'tests/test_contrastive.py::test_the_gradient_in_chunks_is_that_of_the_whole_batch',
  ),
  (
    'the lower score is to be the more alike',
    OBJECTIVE,
    'higher_PP = (scores_P[:, None] > scores_P)',
    'higher_PP = (scores_P[:, None] < scores_P)',
    ORDER,
  ),
  (
    'the length of nothing has no gradient',
    OBJECTIVE,
    'jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(x), axis=-1, keepdims=True), 1e-24))',
    '1 / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)',
    ORDER,
  ),
  (
    'capitals make another text',
    TASK,
    'numbers.setdefault(x[: limit - 2].tobytes(), len(numbers) + 1) for x in ids]',
    'numbers.setdefault(x, len(numbers) + 1) for x in item.texts]',
    ITEMS,
  ),
  (
    'a negative that is not there counts',
    TASK,
    'np.array([bool(x) for item in items for x in item.texts], np.float32)',
    'np.array([True for item in items for x in item.texts], np.float32)',
    ITEMS,
  ),
  (
    'an equally near paragraph is no miss',
    TASK,
    'np.sum(~(others < best))',
    'int(1 + (of_all > best).sum())',
    RANKS,
  ),
  (
    'a text is an answer to itself',
    TASK,
    'of_all[itself] = -np.inf',
    'pass',
    RANKS,
  ),
  (
    'one of several paragraphs is right',
    TASK,
    'list(golds[number[anchor]])',
    '[column[item.texts[1]]]',
    RANKS,
  ),
  (
    'an evaluation does not see what belongs to what',
    TASK,
    'digest.update(repr((item.texts, item.score)).encode())',
    'pass',
    'tests/test_contrastive.py::test_the_fingerprint_of_an_evaluation_knows_scores_and_pairs',
  ),
  (
    'the pooling of a run is not that of its vectors',
    'bert_jax/trained.py',
    'sentence_transformers.Vector(*TASKS[config.objective].vector(config))',
    'sentence_transformers.UNKNOWN',
    'tests/test_contrastive.py::'
    'test_vectors_of_a_run_are_those_of_the_export_in_sentence_transformers',
  ),
  (
    'blank lines of an index are not counted in the numbers of its lines',
    SEARCH,
    'for n, line in files.lines(Path(index).expanduser(), counts)]',
    'for n, line in files.lines(Path(index).expanduser(), counts) if line]',
    'tests/test_search.py::test_a_line_finds_itself_first_and_others_by_their_similarity',
  ),
  (
    'of equal lines the last comes first',
    SEARCH,
    'sorted(np.flatnonzero(similar >= least), key',
    'sorted(np.flatnonzero(similar >= least)[::-1], key',
    'tests/test_search.py::test_equal_lines_come_in_their_order',
  ),
  (
    'vectors of other weights are used',
    SEARCH,
    'digest.update(name.encode() + np.ascontiguousarray(x).tobytes())',
    'digest.update(name.encode())',
    KEPT,
  ),
  (
    'vectors of another pooling are used',
    SEARCH,
    'model.tokenizer.fingerprint, model.limit, self.pooling, self.normalize',
    'model.tokenizer.fingerprint, model.limit, self.normalize',
    KEPT,
  ),
  (
    'a kept file whose bits say that it is compressed otherwise is a traceback',
    'bert_jax/whole_files.py',
    'EOFError, RuntimeError,',
    'EOFError,',
    'tests/test_search.py::test_a_kept_file_with_any_bit_flipped_is_whole_or_none',
  ),
]
