"""Kernels that choose tokens: peaks, scores of a whole vocabulary, and draws among what filters leave.

Programs hold running results for each place of their tile and reduce them once, at the end. Ids grow from one tile to
the next, so that the first of equals is found by never replacing an equal.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

INFINITE = tl.constexpr(float("inf"))
# The bits of float32's infinity: how many steps there are from 0 to it.
INFINITE_BITS = tl.constexpr(0x7F800000)
NO_TOKEN = tl.constexpr(2**31 - 1)
# Words of random bits that one block of Philox gives: one a token.
LANES = tl.constexpr(4)


@triton.jit(do_not_specialize=["num_rows"])
def find_peaks(
    logits_pointer,
    part_peaks_pointer,
    part_ids_pointer,
    num_rows,
    vocab,
    logits_stride,
    split_tokens,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Find the largest logit, NaN if there is one, and the first token that has it, of a part of each row."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_range = (rows < num_rows)[:, None]
    row_starts = logits_pointer + rows.to(tl.int64)[:, None] * logits_stride
    start = tl.program_id(1) * split_tokens
    end = tl.minimum(start + split_tokens, vocab)
    best = tl.full((ROWS, TOKENS), -INFINITE, tl.float32)
    ids = tl.full((ROWS, TOKENS), NO_TOKEN, tl.int32)
    has_nan = tl.zeros((ROWS, TOKENS), tl.int32)
    for first in range(start, end, TOKENS):
        tokens = (first + tl.arange(0, TOKENS))[None, :]
        mask = in_range & (tokens < end)
        x = tl.load(row_starts + tokens, mask=mask, other=-INFINITE).to(tl.float32)
        has_nan = tl.where(x != x, 1, has_nan)
        is_better = (x > best) | ((ids == NO_TOKEN) & mask)
        best = tl.where(is_better & (x == x), x, best)
        ids = tl.where(is_better, tokens, ids)
    peaks = tl.max(best, axis=1)
    likeliest = tl.min(tl.where(best == peaks[:, None], ids, NO_TOKEN), axis=1)
    peaks = tl.where(tl.max(has_nan, axis=1) > 0, float("nan"), peaks)
    places = rows * tl.num_programs(1) + tl.program_id(1)
    tl.store(part_peaks_pointer + places, peaks, mask=rows < num_rows)
    tl.store(part_ids_pointer + places, likeliest, mask=rows < num_rows)


@triton.jit(do_not_specialize=["num_rows"])
def merge_peaks(
    part_peaks_pointer,
    part_ids_pointer,
    peaks_pointer,
    token_ids_pointer,
    num_rows,
    num_splits,
    vocab,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Merge what was found in the parts of each row."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    splits = tl.arange(0, SPLITS)[None, :]
    mask = (rows < num_rows)[:, None] & (splits < num_splits)
    places = rows[:, None] * num_splits + splits
    part_peaks = tl.load(part_peaks_pointer + places, mask=mask, other=-INFINITE)
    ids = tl.load(part_ids_pointer + places, mask=mask, other=NO_TOKEN)
    has_nan = tl.max((part_peaks != part_peaks).to(tl.int32), axis=1) > 0
    known = tl.where(part_peaks == part_peaks, part_peaks, -INFINITE)
    peaks = tl.max(known, axis=1)
    likeliest = tl.min(tl.where(known == peaks[:, None], ids, NO_TOKEN), axis=1)
    tl.store(peaks_pointer + rows, tl.where(has_nan, float("nan"), peaks), mask=rows < num_rows)
    tl.store(token_ids_pointer + rows, tl.minimum(likeliest, vocab - 1).to(tl.int64), mask=rows < num_rows)


@triton.jit(do_not_specialize=["num_rows"])
def scale_logits(
    logits_pointer,
    peaks_pointer,
    temperatures_pointer,
    scaled_pointer,
    num_rows,
    vocab,
    logits_stride,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Write ``(logit - peak) / temperature`` of rows with a temperature."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_range = rows < num_rows
    temperatures = tl.load(temperatures_pointer + rows, mask=in_range, other=0.0)[:, None]
    tokens = (tl.program_id(1) * TOKENS + tl.arange(0, TOKENS))[None, :]
    mask = in_range[:, None] & (tokens < vocab) & (temperatures > 0.0)
    wide_rows = rows.to(tl.int64)[:, None]
    x = tl.load(logits_pointer + wide_rows * logits_stride + tokens, mask=mask, other=0.0).to(tl.float32)
    peaks = tl.load(peaks_pointer + rows, mask=in_range, other=0.0)[:, None]
    # Rounded like any IEEE division, for this decides which tokens are equal.
    scaled = tl.div_rn(x - peaks, tl.where(temperatures > 0.0, temperatures, 1.0))
    tl.store(scaled_pointer + wide_rows * vocab + tokens, scaled, mask=mask)


@triton.jit
def gumbel(bits):
    """Turn 32 random bits into standard Gumbel noise, in float64."""
    uniform = (bits.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return -tl.log(-tl.log(uniform))


@triton.jit
def best_scores(
    row_starts,
    is_drawn,
    seeds,
    positions,
    floors,
    last_ids,
    start,
    end,
    vocab,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Find the best score, and its token, among tokens above each row's floor or at it with an id up to the last."""
    best = tl.full((ROWS, GROUPS), -INFINITE, tl.float64)
    ids = tl.full((ROWS, GROUPS), NO_TOKEN, tl.int32)
    for first in range(start, end, GROUPS * LANES):
        groups = first // LANES + tl.arange(0, GROUPS)[None, :]
        zeros = tl.zeros((ROWS, GROUPS), tl.int32)
        word_0, word_1, word_2, word_3 = tl.philox(
            seeds[:, None],
            groups + zeros,
            positions[:, None] + zeros,
            zeros,
            zeros,
        )
        for lane in tl.static_range(4):
            tokens = groups * LANES + lane
            mask = is_drawn[:, None] & (tokens < end) & (tokens < vocab)
            x = tl.load(row_starts + tokens, mask=mask, other=-INFINITE)
            if lane == 0:
                noise = gumbel(word_0)
            elif lane == 1:
                noise = gumbel(word_1)
            elif lane == 2:
                noise = gumbel(word_2)
            else:
                noise = gumbel(word_3)
            is_in = (x > floors[:, None]) | ((x == floors[:, None]) & (tokens <= last_ids[:, None]))
            scores = x.to(tl.float64) + noise
            is_better = mask & is_in & (scores > best)
            best = tl.where(is_better, scores, best)
            ids = tl.where(is_better, tokens, ids)
    score = tl.max(best, axis=1)
    return score, tl.min(tl.where(best == score[:, None], ids, NO_TOKEN), axis=1)


@triton.jit(do_not_specialize=["num_rows"])
def draw_plain(
    scaled_pointer,
    temperatures_pointer,
    top_k_pointer,
    top_p_pointer,
    min_p_pointer,
    seeds_pointer,
    positions_pointer,
    part_scores_pointer,
    part_ids_pointer,
    num_rows,
    vocab,
    split_tokens,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Find the best score of a part of each row that has a temperature and no filter."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_range = rows < num_rows
    is_random = tl.load(temperatures_pointer + rows, mask=in_range, other=0.0) > 0.0
    is_filtered = (
        (tl.load(top_k_pointer + rows, mask=in_range, other=0) < vocab)
        | (tl.load(top_p_pointer + rows, mask=in_range, other=1.0) < 1.0)
        | (tl.load(min_p_pointer + rows, mask=in_range, other=0.0) > 0.0)
    )
    is_drawn = in_range & is_random & (is_filtered == 0)
    places = rows * tl.num_programs(1) + tl.program_id(1)
    if tl.max(is_drawn.to(tl.int32), axis=0) > 0:
        start = tl.program_id(1) * split_tokens
        score, ids = best_scores(
            scaled_pointer + rows.to(tl.int64)[:, None] * vocab,
            is_drawn,
            tl.load(seeds_pointer + rows, mask=in_range, other=0),
            tl.load(positions_pointer + rows, mask=in_range, other=0).to(tl.int32),
            tl.full((ROWS,), -INFINITE, tl.float32),
            tl.full((ROWS,), NO_TOKEN, tl.int32),
            start,
            tl.minimum(start + split_tokens, vocab),
            vocab,
            ROWS,
            GROUPS,
        )
        tl.store(part_scores_pointer + places, score, mask=in_range)
        tl.store(part_ids_pointer + places, tl.where(is_drawn, ids, NO_TOKEN), mask=in_range)
    else:
        tl.store(part_ids_pointer + places, tl.full((ROWS,), NO_TOKEN, tl.int32), mask=in_range)


@triton.jit(do_not_specialize=["num_rows"])
def merge_draws(
    part_scores_pointer,
    part_ids_pointer,
    token_ids_pointer,
    num_rows,
    num_splits,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Merge the best scores of the parts of each row; rows in which nothing was drawn keep their token."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    splits = tl.arange(0, SPLITS)[None, :]
    places = rows[:, None] * num_splits + splits
    in_range = (rows < num_rows)[:, None] & (splits < num_splits)
    ids = tl.load(part_ids_pointer + places, mask=in_range, other=NO_TOKEN)
    scores = tl.load(part_scores_pointer + places, mask=in_range & (ids != NO_TOKEN), other=-INFINITE)
    best = tl.max(scores, axis=1)
    winner = tl.min(tl.where(scores == best[:, None], ids, NO_TOKEN), axis=1)
    tl.store(token_ids_pointer + rows, winner.to(tl.int64), mask=(rows < num_rows) & (winner != NO_TOKEN))


@triton.jit
def count_at_least(row_starts, in_range, limits, vocab, ROWS: tl.constexpr, TOKENS: tl.constexpr):
    """Count the tokens of each row that are at least ``limits``."""
    counts = tl.zeros((ROWS, TOKENS), tl.int32)
    for first in range(0, vocab, TOKENS):
        tokens = (first + tl.arange(0, TOKENS))[None, :]
        x = tl.load(row_starts + tokens, mask=in_range[:, None] & (tokens < vocab), other=-INFINITE)
        counts += ((x >= limits[:, None]) & (tokens < vocab)).to(tl.int32)
    return tl.sum(counts, axis=1)


@triton.jit
def id_among_equals(row_starts, in_range, values, missing, vocab, ROWS: tl.constexpr, TOKENS: tl.constexpr):
    """Return the id of each row's token number ``missing``, from 1 on, among those that equal ``values``."""
    found = tl.full((ROWS,), NO_TOKEN, tl.int32)
    seen = tl.zeros((ROWS,), tl.int32)
    for first in range(0, vocab, TOKENS):
        tokens = (first + tl.arange(0, TOKENS))[None, :]
        mask = in_range[:, None] & (tokens < vocab)
        x = tl.load(row_starts + tokens, mask=mask, other=0.0)
        is_equal = ((x == values[:, None]) & mask).to(tl.int32)
        ranks = seen[:, None] + tl.cumsum(is_equal, axis=1)
        is_it = (is_equal > 0) & (ranks == missing[:, None])
        found = tl.minimum(found, tl.min(tl.where(is_it, tokens, NO_TOKEN), axis=1))
        seen += tl.sum(is_equal, axis=1)
    return found


@triton.jit
def mass(row_starts, in_range, floors, last_ids, vocab, ROWS: tl.constexpr, TOKENS: tl.constexpr):
    """Sum e to each value above a row's floor, or at it with an id up to the last, in float64."""
    sums = tl.zeros((ROWS, TOKENS), tl.float64)
    for first in range(0, vocab, TOKENS):
        tokens = (first + tl.arange(0, TOKENS))[None, :]
        mask = in_range[:, None] & (tokens < vocab)
        x = tl.load(row_starts + tokens, mask=mask, other=-INFINITE)
        is_in = (x > floors[:, None]) | ((x == floors[:, None]) & (tokens <= last_ids[:, None]))
        sums += tl.where(is_in & mask, tl.exp(x), 0.0).to(tl.float64)
    return tl.sum(sums, axis=1)


@triton.jit(do_not_specialize=["num_rows"])
def draw_filtered(
    scaled_pointer,
    temperatures_pointer,
    top_k_pointer,
    top_p_pointer,
    min_p_pointer,
    log_min_p_pointer,
    seeds_pointer,
    positions_pointer,
    peaks_pointer,
    token_ids_pointer,
    undecided_pointer,
    num_rows,
    vocab,
    mass_margin,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Draw in rows with a temperature and a filter; ``token_ids`` hold the likeliest tokens before.

    The best score among all that top_k and min_p leave is found first. If top_p excludes its token, so it does every
    token ranked behind it, and the search goes on among those ahead. Rows in which a rounding could decide whether
    it does are marked.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_range = rows < num_rows
    top_k = tl.load(top_k_pointer + rows, mask=in_range, other=0).to(tl.int32)
    top_p = tl.load(top_p_pointer + rows, mask=in_range, other=1.0)
    min_p = tl.load(min_p_pointer + rows, mask=in_range, other=0.0)
    temperatures = tl.load(temperatures_pointer + rows, mask=in_range, other=0.0)
    peaks = tl.load(peaks_pointer + rows, mask=in_range, other=0.0)
    is_open = in_range & (temperatures > 0.0) & ((top_k < vocab) | (top_p < 1.0) | (min_p > 0.0))
    # Nothing is drawn where a logit is not a number or infinite.
    is_open = is_open & (tl.abs(peaks) < INFINITE)
    if tl.max(is_open.to(tl.int32), axis=0) > 0:
        row_starts = scaled_pointer + rows.to(tl.int64)[:, None] * vocab
        log_min_p = tl.load(log_min_p_pointer + rows, mask=in_range, other=-INFINITE)
        seeds = tl.load(seeds_pointer + rows, mask=in_range, other=0)
        positions = tl.load(positions_pointer + rows, mask=in_range, other=0).to(tl.int32)
        likeliest = tl.load(token_ids_pointer + rows, mask=in_range, other=0).to(tl.int32)
        floors = tl.full((ROWS,), -INFINITE, tl.float32)
        last_ids = tl.full((ROWS,), NO_TOKEN, tl.int32)
        has_top_k = is_open & (top_k < vocab)
        # Values are not above 0, and the bits of floats of one sign are ordered as their sizes are: look for the least
        # size at which there are enough tokens.
        low = tl.zeros((ROWS,), tl.int32)
        high = tl.where(has_top_k, INFINITE_BITS, 0)
        while tl.max(high - low, axis=0) > 0:
            middle = low + (high - low) // 2
            limits = -middle.to(tl.float32, bitcast=True)
            counts = count_at_least(row_starts, has_top_k, limits, vocab, ROWS, TOKENS)
            is_exact = counts == top_k
            low = tl.where((low < high) & (counts < top_k), middle + 1, tl.where(is_exact, middle, low))
            high = tl.where(counts >= top_k, tl.minimum(high, middle), high)
        if tl.max(has_top_k.to(tl.int32), axis=0) > 0:
            values = -low.to(tl.float32, bitcast=True)
            ahead = -tl.maximum(low - 1, 0).to(tl.float32, bitcast=True)
            counts = count_at_least(row_starts, has_top_k, ahead, vocab, ROWS, TOKENS)
            missing = top_k - tl.where(low > 0, counts, 0)
            edge_ids = id_among_equals(row_starts, has_top_k, values, missing, vocab, ROWS, TOKENS)
            floors = tl.where(has_top_k, values, floors)
            last_ids = tl.where(has_top_k, edge_ids, last_ids)
        is_higher = log_min_p > floors
        floors = tl.where(is_higher, log_min_p, floors)
        last_ids = tl.where(is_higher, NO_TOKEN, last_ids)
        has_top_p = is_open & (top_p < 1.0)
        limit = tl.zeros((ROWS,), tl.float64)
        if tl.max(has_top_p.to(tl.int32), axis=0) > 0:
            limit = top_p.to(tl.float64) * mass(row_starts, has_top_p, floors, last_ids, vocab, ROWS, TOKENS)
        undecided = tl.zeros((ROWS,), tl.int32)
        chosen = likeliest
        while tl.max(is_open.to(tl.int32), axis=0) > 0:
            _, winners = best_scores(
                row_starts, is_open, seeds, positions, floors, last_ids, 0, vocab, vocab, ROWS, GROUPS
            )
            winners = tl.where(winners == NO_TOKEN, likeliest, winners)
            chosen = tl.where(is_open, winners, chosen)
            is_open = is_open & has_top_p & (winners != likeliest)
            if tl.max(is_open.to(tl.int32), axis=0) > 0:
                values = tl.load(scaled_pointer + rows.to(tl.int64) * vocab + winners, mask=is_open, other=0.0)
                mass_ahead = mass(row_starts, is_open, values, winners - 1, vocab, ROWS, TOKENS)
                is_near = is_open & (tl.abs(mass_ahead - limit) <= mass_margin * limit)
                undecided = tl.where(is_near, 1, undecided)
                is_open = is_open & (is_near == 0) & (mass_ahead >= limit)
                floors = tl.where(is_open, values, floors)
                last_ids = tl.where(is_open, winners - 1, last_ids)
        tl.store(token_ids_pointer + rows, chosen.to(tl.int64), mask=in_range)
        tl.store(undecided_pointer + rows, undecided.to(tl.int8), mask=in_range)
