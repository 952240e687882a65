"""Faults put in by hand: what is read before, and texts longer than a row."""

XL = 'tests/test_transformer_xl.py::'
LONG = 'tests/test_long_texts.py::'
ONE_PASS = XL + 'test_rows_with_a_memory_are_one_forward_pass_over_all'
FOUR = XL + 'test_scores_are_the_four_terms'
STOPPED = XL + 'test_no_gradient_goes_through_the_memory'
AS_ONE = XL + 'test_the_objective_reads_a_corpus_as_one_text'
TOGETHER = LONG + 'test_windows_of_a_text_are_classified_together'

MUTANTS = [
  # (name, file, text as it stands, text with the fault, tests that must fail)
  (
    'rows of scores are not shifted against each other',
    'bert_jax/models/relative.py',
    '(0, 0), (0, 0), (0, 0), (0, 1))',
    '(0, 0), (0, 0), (0, 1), (0, 0))',
    FOUR,
  ),
  (
    'the second vector of relative positions is the first',
    'bert_jax/models/relative.py',
    '(q_BTHd + v_Hd)',
    '(q_BTHd + u_Hd)',
    FOUR,
  ),
  (
    'distances are not clamped',
    'bert_jax/models/relative.py',
    'if config.relative_clamp:',
    'if False:',
    FOUR,
  ),
  (
    'a token that is written has the place of the last one of its cache',
    'bert_jax/models/relative.py',
    'if places is not None and places.ndim == 2:',
    'if False:',
    XL + 'test_scores_of_a_token_amid_a_cache_are_those_of_its_place',
  ),
  (
    'the terms of positions are divided twice',
    'bert_jax/models/relative.py',
    'q_v_XHd = ((q_BTHd + v_Hd) / math.sqrt(d))',
    'q_v_XHd = ((q_BTHd + v_Hd) / d)',
    XL + 'test_attention_with_them_is_a_softmax_of_their_sums',
  ),
  (
    'a gradient goes into the memory',
    'bert_jax/models/tokens.py',
    '[jax.lax.stop_gradient(memory_BM), row_BT]',
    '[memory_BM, row_BT]',
    STOPPED,
  ),
  (
    'the memory takes up padding',
    'bert_jax/objectives/language_model.py',
    "tokens_B = jnp.sum(batch['segment_ids'] > 0, axis=1, dtype=jnp.int32)",
    "tokens_B = jnp.sum(batch['segment_ids'] >= 0, axis=1, dtype=jnp.int32)",
    AS_ONE,
  ),
  (
    'the memory takes up the last token of a row too',
    'bert_jax/objectives/language_model.py',
    'taken_B = jnp.maximum(tokens_B - 1, 0)',
    'taken_B = jnp.maximum(tokens_B, 0)',
    AS_ONE,
  ),
  (
    'what is in no memory is seen',
    'bert_jax/models/attention.py',
    'ids_BT = jnp.concatenate([memory.segment_ids, tokens.segment_ids], axis=1)',
    'ids_BT = jnp.concatenate([0 * memory.segment_ids + 1, tokens.segment_ids], axis=1)',
    ONE_PASS,
  ),
  (
    'a row stands before its memory',
    'bert_jax/models/attention.py',
    'queries = dataclasses.replace(tokens, places=places[M:],',
    'queries = dataclasses.replace(tokens, places=places[:T],',
    ONE_PASS,
  ),
  (
    'an evaluation has the memory of the training',
    'bert_jax/objectives/language_model.py',
    'self.eval_memory or self.model.memory_length',
    'self.model.memory_length',
    XL + 'test_a_longer_memory_in_evaluations',
  ),
  (
    'a resumed run has an empty memory',
    'bert_jax/run_setup.py',
    'state, meta = source.restore(program.state)',
    'state, meta = source.restore(program.state)\n'
    '      state = dataclasses.replace(state, carry=step.zeros(state.carry))',
    XL + 'test_a_run_resumes_amid_documents_with_the_same_bits',
  ),
  (
    'stretches know nothing of each other',
    'bert_jax/models/recurrence.py',
    'return memory, hidden_BSD',
    'return jax.tree.map(jnp.zeros_like, memory), hidden_BSD',
    LONG + 'test_stretches_know_what_was_read_before_and_no_more',
  ),
  (
    'examples begin anywhere in a stretch',
    'bert_jax/rows/row_arrays.py',
    'taken = -(-lengths // align) * align',
    'taken = lengths',
    LONG + 'test_examples_begin_where_stretches_do',
  ),
  (
    'a long text is classified by its first stretch',
    'bert_jax/objectives/base.py',
    'if model.causal or model.recurrent_length:',
    'if model.causal:',
    LONG + 'test_a_text_is_classified_by_its_last_stretch',
  ),
  (
    'tiled positions are interpolated',
    'bert_jax/models/positions.py',
    "if how == 'tile':",
    "if how == 'tiled':",
    LONG + 'test_a_table_is_tiled_or_interpolated',
  ),
  (
    'longer positions are new ones',
    'bert_jax/initialization.py',
    'if name.endswith(end)]:',
    'if name == end]:',
    LONG + 'test_a_run_begins_with_longer_positions',
  ),
  (
    'longer positions are made longer again when a run goes on',
    'bert_jax/initialization.py',
    "!= 'none' and not beginning.continues:",
    "!= 'none':",
    LONG + 'test_a_run_with_longer_positions_goes_on',
  ),
  (
    'global tokens are seen and do not see',
    'bert_jax/models/tokens.py',
    'near |= pattern.queries.everywhere[:, :, None] | pattern.keys.everywhere[:, None, :]',
    'near |= pattern.keys.everywhere[:, None, :]',
    LONG + 'test_global_tokens_see_and_are_seen_by_all_of_their_example',
  ),
  (
    'long rows have no global tokens',
    'bert_jax/models/bands.py',
    'if pattern.queries.everywhere is not None:',
    'if False:',
    LONG + 'test_an_encoder_has_as_many_global_tokens_as_its_field_says',
  ),
  (
    'vectors of other texts count too',
    'bert_jax/objectives/classification.py',
    'jnp.where(same_BNN, scores_BN[:, None, :], -jnp.inf)',
    'jnp.where(same_BNN, scores_BN[:, None, :], 0)',
    LONG + 'test_vectors_of_a_group_are_weighed_by_a_softmax',
  ),
  (
    'windows of a text are spread over rows',
    'bert_jax/tasks/classification/task.py',
    'items, shape = self.text_of if together else None,',
    'items, shape = None,',
    TOGETHER,
  ),
  (
    'the length of a text is that of what is left of it',
    'bert_jax/tasks/choice/task.py',
    'lengths.append(len(context) + longest)',
    'lengths.append(min(room, len(context) + longest))',
    'tests/test_lengths.py::test_the_length_of_a_question_is_that_of_all_of_it',
  ),
  (
    'answers that nobody knows are scored by length',
    'bert_jax/rows/examples.py',
    "      if 'gold' in answer:\n        groups",
    '      if True:\n        groups',
    'tests/test_lengths.py::test_each_answer_is_scored_among_those_of_its_length',
  ),
  (
    'a mask, or every text, loses all blanks at its ends',
    'bert_jax/tokenizers/byte_level.py',
    "whole.removeprefix(' ') if add_prefix_space",
    'whole.strip() if add_prefix_space',
    XL + 'test_bytes_are_a_vocabulary',
  ),
  (
    'the last layers of init_from are taken',
    'bert_jax/initialization.py',
    'range(number - count, number)',
    'range(count - 1)',
    LONG + 'test_last_layers_that_are_new',
  ),
]
