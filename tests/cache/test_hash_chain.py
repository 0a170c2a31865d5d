"""The prefix hash: equal only for equal tokens at equal places under equal keys."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from pageport.cache.hash_chain import HashChain, block_digest, root_digest

KEY_SETS: list[dict[str, str]] = [
    {},
    {"salt": ""},
    {"adapter": ""},
    {"salt": "S"},
    {"adapter": "S"},
    {"image": "S"},
    {"salt": "S", "adapter": ""},
    {"salt": "", "adapter": "S"},
    {"salt": "S", "adapter": "S"},
    {"salt": "adapterS"},
    {"saltadapter": "S"},
    {"salt": "\x07\x00\x00\x00\x00\x00\x00\x00adapter"},
    {"adapter": "S#load-1"},
    {"adapter": "S#load-2"},
]


def test_no_two_key_sets_share_a_root() -> None:
    """Cases KVC-03, KVC-04, KVC-11: keys are tagged, lengths are hashed, absent differs from empty."""
    for one, other in combinations(KEY_SETS, 2):
        assert root_digest(one) != root_digest(other), (one, other)


keys = st.dictionaries(st.text(alphabet="ab\0\x01", max_size=3), st.text(alphabet="ab\0\x01", max_size=3), max_size=3)


@given(keys, keys)
def test_roots_are_equal_exactly_when_the_keys_are(one: dict[str, str], other: dict[str, str]) -> None:
    assert (root_digest(one) == root_digest(other)) == (one == other)


def test_order_of_the_keys_does_not_matter() -> None:
    assert root_digest({"salt": "a", "adapter": "b"}) == root_digest({"adapter": "b", "salt": "a"})


def test_lone_surrogate_in_a_salt_is_hashed() -> None:
    assert root_digest({"salt": "\ud800"}) != root_digest({"salt": "\ud801"})


def test_tokens_are_hashed_at_a_fixed_width() -> None:
    root = root_digest({})
    digests = {block_digest(root, ids) for ids in ([1, 2], [12], [1, 2, 0], [258], [2, 1], [1 << 40], [-1])}
    assert len(digests) == 7


def test_equal_blocks_after_different_prefixes_differ() -> None:
    one, other = HashChain({}), HashChain({})
    assert one.digest(2, [1, 2, 3, 4], 1) != other.digest(2, [9, 2, 3, 4], 1)


def test_truncated_chain_hashes_the_new_tokens() -> None:
    chain = HashChain({})
    chain.digest(2, [1, 2, 3, 4], 1)
    chain.truncate(3)
    assert chain.digest(2, [1, 2, 3, 9], 1) == HashChain({}).digest(2, [1, 2, 3, 9], 1)


def test_copy_grows_on_its_own() -> None:
    chain = HashChain({"salt": "x"})
    chain.digest(2, [1, 2], 0)
    copy = chain.copy()
    assert copy.digest(2, [1, 2, 3, 4], 1) != chain.digest(2, [1, 2, 5, 6], 1)
    assert chain.digest(2, [1, 2, 5, 6], 1) == HashChain({"salt": "x"}).digest(2, [1, 2, 5, 6], 1)
