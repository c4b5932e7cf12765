import unittest

from slugify import slugify


class SlugifyTest(unittest.TestCase):
    def test_joins_words_by_one_hyphen(self) -> None:
        self.assertEqual(slugify("Crash anywhere,  finish once!"), "crash-anywhere-finish-once")

    def test_leaves_no_hyphen_at_the_ends(self) -> None:
        self.assertEqual(slugify("  (draft) "), "draft")

    def test_never_cuts_a_word(self) -> None:
        self.assertEqual(slugify("one two three", limit=9), "one-two")

    def test_empty_stays_empty(self) -> None:
        self.assertEqual(slugify("???"), "")


if __name__ == "__main__":
    unittest.main()
