import pytest

from omnitts.model.language import _table, languages, near_languages, resolve_language

NAMES = {language_id: names[0] for language_id, names in _table().items()}


def test_table_has_every_language_once():
    assert len(NAMES) == 646
    assert list(NAMES) == sorted(NAMES)
    assert len(set(NAMES.values())) == 646
    assert all(name and name == name.strip() for name in NAMES.values())
    assert {"en", "zh", "yue", "arb", "aae", "zza"} <= set(NAMES)


def test_ids_and_names_of_the_table_resolve():
    for language_id, name in NAMES.items():
        assert resolve_language(language_id) == language_id
        assert resolve_language(language_id.upper()) == language_id
        assert resolve_language(name) == language_id
        assert resolve_language(f"  {name.upper()} ") == language_id


@pytest.mark.parametrize(
    ("name", "language_id"),
    [
        ("English", "en"),
        ("chinese", "zh"),
        ("Mandarin", "zh"),
        ("Mandarin Chinese", "zh"),
        ("Cantonese", "yue"),
        ("Spanish", "es"),
        ("Castilian", "es"),
        ("Arabic", "arb"),
        ("Egyptian Arabic", "arz"),
        ("German", "de"),
        ("Persian", "fa"),
        ("Farsi", "fa"),
        ("Punjabi", "pa"),
        ("Panjabi", "pa"),
        ("Swahili", "sw"),
        ("Greek", "el"),
        ("Hindi", "hi"),
        ("Nepali", "npi"),
        ("Odia", "ory"),
        ("Kurdish", "kmr"),
        ("Tagalog", "fil"),
        ("Bengali", "bn"),
        ("Pashto", "ps"),
        ("Malay", "ms"),
        ("Haitian Creole", "ht"),
        ("haitian-creole", "ht"),
        ("Kyrgyz", "ky"),
        ("Norwegian Bokmal", "nb"),
        ("Māori", "mi"),
        ("maori", "mi"),
        ("Luo", "luo"),
        ("Luo (Kenya and Tanzania)", "luo"),
        ("Fe'fe'", "fmp"),
        ("Burmese", "my"),
        ("Japanese", "ja"),
        ("Korean", "ko"),
        ("French", "fr"),
        ("Russian", "ru"),
        ("Portuguese", "pt"),
        ("Vietnamese", "vi"),
        ("Thai", "th"),
        ("Ukrainian", "uk"),
        ("Hebrew", "he"),
    ],
)
def test_english_names(name, language_id):
    assert resolve_language(name) == language_id


@pytest.mark.parametrize(
    ("tag", "language_id"),
    [
        ("en-US", "en"),
        ("EN_us", "en"),
        ("zh_CN", "zh"),
        ("zh-Hans-CN", "zh"),
        ("es-419", "es"),
        ("eng", "en"),
        ("eng-GB", "en"),
        ("deu", "de"),
        ("ger", "de"),
        ("cmn", "zh"),
        ("cmn-Hant", "zh"),
        ("ar-EG", "arb"),
        ("yue-HK", "yue"),
        ("swh", "sw"),
    ],
)
def test_codes_and_tags(tag, language_id):
    assert resolve_language(tag) == language_id


@pytest.mark.parametrize("unknown", [None, "", " ", "None", "Klingon", "xx", "xx-US", "en US", "Basa", "la", "英语"])
def test_unknown(unknown):
    assert resolve_language(unknown) is None


def test_languages_are_found_by_the_start_of_a_word():
    assert languages() == _table()
    assert {"arb", "ary"} <= set(languages("arabic")) and "en" not in languages("arabic")
    assert list(languages("ÉNGLISH")) == list(languages("english")) and "en" in languages("english")
    assert languages("en")["en"][0] == "English"
    assert languages("nglish") == {} and languages("%") == languages()


def test_what_an_unknown_name_may_have_meant():
    assert near_languages("Englsh")[0] == "English"
    assert near_languages("Portugese")[0] == "Portuguese"
    assert near_languages("klingon") == [] and near_languages("") == [] and near_languages("x" * 100_000) == []
