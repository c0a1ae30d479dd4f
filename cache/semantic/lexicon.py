"""Word lists of the guard: English, and small lists for German, French, Spanish, Italian, Portuguese and Dutch.

All words are folded: lower case, without accents. The lists are hand-written. A word that is missing in them makes the guard see less; a
word that is wrong in them makes it refuse more.
"""

from collections import Counter
from typing import Final

import msgspec

ENGLISH: Final = "en"
WHO, WHEN, WHERE, WHY, COUNT, AMOUNT = "who", "when", "where", "why", "how-many", "how-much"
DURATION, OFTEN, FAR, AGE = "how-long", "how-often", "how-far", "how-old"


class Lexicon(msgspec.Struct, frozen=True):
    """What the words of one language do."""

    function: frozenset[str]
    """Words that say little about the subject."""
    negation: frozenset[str]
    questions: dict[str, str]
    """Question words, or two of them with a space between, to their class."""
    numbers: dict[str, str]
    """Number words to digits; ordinals to `#` and digits."""
    dates: dict[str, str]
    """Weekdays, months and relative days to a common form."""


def word_set(text: str) -> frozenset[str]:
    """Words with spaces between, as a set."""
    return frozenset(text.split())


def _table(text: str) -> dict[str, str]:
    """`five=5 six=6` as a table."""
    return dict(pair.split("=") for pair in text.split())


def _in_order(text: str, begin: int, form: str = "{}") -> dict[str, str]:
    """Words to consecutive numbers; words for one number are joined by `/`."""
    return {word: form.format(number) for number, words in enumerate(text.split(), begin) for word in words.split("/")}


def _days(text: str) -> dict[str, str]:
    """Seven weekdays from Monday, then twelve months."""
    words = text.split()
    return {
        word: f"{'weekday' if at < 7 else 'month'}{at if at < 7 else at - 6}" for at, group in enumerate(words) for word in group.split("/")
    }


CONTRACTIONS: Final = {
    "can't": ("can", "not"),
    "cant": ("can", "not"),
    "cannot": ("can", "not"),
    "won't": ("will", "not"),
    "wont": ("will", "not"),
    "shan't": ("shall", "not"),
    "dont": ("do", "not"),
    "doesnt": ("does", "not"),
    "didnt": ("did", "not"),
    "isnt": ("is", "not"),
    "arent": ("are", "not"),
    "wasnt": ("was", "not"),
    "werent": ("were", "not"),
    "hasnt": ("has", "not"),
    "havent": ("have", "not"),
    "hadnt": ("had", "not"),
    "couldnt": ("could", "not"),
    "wouldnt": ("would", "not"),
    "shouldnt": ("should", "not"),
    "ain't": ("is", "not"),
    "im": ("i", "am"),
    "ive": ("i", "have"),
    "whats": ("what", "is"),
    "wheres": ("where", "is"),
    "hows": ("how", "is"),
    "whos": ("who", "is"),
    "whens": ("when", "is"),
    "thats": ("that", "is"),
    "let's": ("let", "us"),
    "e-mail": ("email",),
    "gonna": ("going", "to"),
    "wanna": ("want", "to"),
}

IRREGULAR: Final = _table(
    "cancelled=cancel cancelling=cancel travelled=travel travelling=travel labelled=label modelled=model controlled=control "
    "using=use used=use uses=use sent=send paid=pay bought=buy sold=sell lost=lose losing=lose stole=steal stolen=steal won=win got=get "
    "gotten=get made=make making=make took=take taken=take taking=take went=go gone=go going=go goes=go came=come coming=come gave=give "
    "given=give giving=give found=find kept=keep left=leave leaving=leave told=tell thought=think said=say saw=see seen=see knew=know "
    "known=know wrote=write written=write writing=write broke=break broken=break chose=choose chosen=choose spent=spend "
    "withdrew=withdraw withdrawn=withdraw forgot=forget forgotten=forget froze=freeze frozen=freeze began=begin begun=begin ran=run "
    "running=run grew=grow grown=grow became=become held=hold built=build taught=teach caught=catch ate=eat eaten=eat drank=drink "
    "drove=drive driven=drive flew=fly flown=fly spoke=speak spoken=speak wore=wear worn=wear children=child people=person men=man "
    "women=woman feet=foot teeth=tooth mice=mouse wives=wife lives=life things=thing fed=feed "
)

UNINFLECTED: Final = word_set(
    "news always process access address status series species this bus gas thing nothing during king bring string spring speed feed "
    "seed red bed only "
)
"""Words that look inflected."""

_EN_FUNCTION = word_set(
    "a an the this that these those i me my mine myself we us our ours ourselves you your yours yourself he him his himself she her hers "
    "herself it its itself they them their theirs themselves one someone somebody anyone anybody something anything everyone everything "
    "who whom whose what which when where why how be am is are was were been being do does did done doing have has had having can could "
    "will would shall should may might must ought and or but if then than because as until while of at by for with about against between "
    "into through during before after above below to from up down in out on off over under again further once here there all any both "
    "each few more most other some such no nor not only own same so too very just also even yet still already ever upon within without "
    "toward towards onto per via among across along around behind beside beyond like though although whether since unless however "
    # what a question or request begins with, and what it asks for
    "please hi hello hey dear thanks thank ok okay yes well oh tell explain describe show give let know want need like help wish wondering "
    "wonder wondered understand advise inform ask asking question possible possibly able get getting go going make way ways step steps "
    "guide instruction instructions process procedure method methods tutorial howto best proper properly correct correctly exactly "
    "info information detail details thing things kind sort "
    # what adds nothing
    "actually really truly indeed fact basically literally simply certainly definitely obviously honestly quite rather maybe perhaps "
    "anyway currently generally usually normally s t"
)

_EN_QUESTIONS = {
    "who": WHO,
    "whom": WHO,
    "whose": WHO,
    "what person": WHO,
    "which person": WHO,
    "when": WHEN,
    "what time": WHEN,
    "what date": WHEN,
    "which date": WHEN,
    "what day": WHEN,
    "which day": WHEN,
    "what year": WHEN,
    "which year": WHEN,
    "how soon": WHEN,
    "where": WHERE,
    "what place": WHERE,
    "which place": WHERE,
    "what location": WHERE,
    "why": WHY,
    "how come": WHY,
    "how many": COUNT,
    "how much": AMOUNT,
    "how long": DURATION,
    "how often": OFTEN,
    "how frequently": OFTEN,
    "how far": FAR,
    "how old": AGE,
}

_EN_ORDINALS = _in_order(
    "first/1st second/2nd third/3rd fourth/4th fifth/5th sixth/6th seventh/7th eighth/8th ninth/9th tenth/10th eleventh twelfth "
    "thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth",
    1,
    "#{}",
)
TENS: Final = _table("twenty=20 thirty=30 forty=40 fifty=50 sixty=60 seventy=70 eighty=80 ninety=90")
SCALES: Final = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000, "trillion": 10**12}
_EN_NUMBERS = {
    **_in_order(
        "zero/nought one two three four five six seven eight nine ten eleven twelve/dozen thirteen fourteen fifteen sixteen seventeen "
        "eighteen nineteen",
        0,
    ),
    **TENS,
    **_EN_ORDINALS,
    **_table("half=0.5 twice=2x thrice=3x double=2x triple=3x hundredth=#100 couple=2"),
}
_EN_DATES = {
    **_days(
        "monday/mon/mondays tuesday/tue/tues/tuesdays wednesday/wed/wednesdays thursday/thu/thur/thurs/thursdays friday/fri/fridays "
        "saturday/saturdays sunday/sundays january/jan february/feb march april/apr may june/jun july/jul august/aug september/sep/sept "
        "october/oct november/nov december/dec"
    ),
    **{
        word: word
        for word in word_set(
            "today tomorrow yesterday weekend weekday spring summer autumn winter christmas easter thanksgiving ramadan "
            "midnight noon morning afternoon evening"
        )
    },
    "tonight": "evening",
    "fall": "autumn",
    "weekends": "weekend",
    "weekdays": "weekday",
    "xmas": "christmas",
    "midday": "noon",
}
DATE_NEEDS_COMPANY: Final = word_set("may march mon fri fall spring")
"""Words that are a date only beside a number, or after a word such as `in`."""
DATE_COMPANY: Final = word_set("in of by until till since last next this early late before after during mid every on from")

LEXICONS: Final = {
    ENGLISH: Lexicon(
        function=_EN_FUNCTION,
        negation=word_set("not no never none nobody nothing neither nor nowhere without except unless unable hardly barely impossible"),
        questions=_EN_QUESTIONS,
        numbers=_EN_NUMBERS,
        dates=_EN_DATES,
    ),
    "de": Lexicon(
        function=word_set(
            "der die das den dem des ein eine einen einem einer ich mich mir mein meine meinen meinem meiner du dich dir dein "
            "wir uns unser unsere sie ihr ihre er sein seine es man ist sind war waren bin wird werden wurde kann konnen "
            "konnte muss soll sollte darf will mochte habe hat haben hatte und oder aber wenn dass weil als auch noch nur "
            "schon so zu zum zur von vom mit bei fur auf an in im am um aus nach uber unter vor durch gegen ohne bis wie was "
            "wer wo wann warum welche welcher welches bitte hallo danke gibt geht"
        ),
        negation=word_set("nicht kein keine keinen keinem keiner nie niemals nichts niemand ohne weder ausser"),
        questions={
            "wer": WHO,
            "wen": WHO,
            "wem": WHO,
            "wann": WHEN,
            "wo": WHERE,
            "wohin": WHERE,
            "woher": WHERE,
            "warum": WHY,
            "wieso": WHY,
            "weshalb": WHY,
            "wie viele": COUNT,
            "wieviele": COUNT,
            "wie viel": AMOUNT,
            "wieviel": AMOUNT,
            "wie lange": DURATION,
            "wie oft": OFTEN,
            "wie weit": FAR,
            "wie alt": AGE,
        },
        numbers=_in_order("null eins zwei drei vier funf sechs sieben acht neun zehn elf zwolf", 0)
        | _in_order("hundert tausend", 100)
        | {"tausend": "1000", "erste": "#1", "ersten": "#1", "zweite": "#2", "zweiten": "#2", "dritte": "#3", "dritten": "#3"},
        dates=_days(
            "montag dienstag mittwoch donnerstag freitag samstag/sonnabend sonntag januar februar marz april mai juni juli august "
            "september oktober november dezember"
        )
        | _table("heute=today gestern=yesterday ubermorgen=overmorrow morgen=tomorrow vorgestern=ereyesterday"),
    ),
    "fr": Lexicon(
        function=word_set(
            "le la les l un une des du de d je me m moi mon ma mes tu te toi ton ta tes nous notre nos vous votre vos il elle "
            "ils elles on se s ce cet cette ces c est sont etait suis etes ai as a avons avez ont peut peux puis pouvez dois "
            "doit faut veux voudrais et ou mais si que qu qui quoi quel quelle quels quelles comment quand pourquoi combien "
            "pour par avec dans sur sous en au aux y ne n pas plus tres aussi bien merci bonjour faire fait"
        ),
        negation=word_set("pas jamais rien aucun aucune sans personne ni sauf"),
        questions={
            "qui": WHO,
            "quand": WHEN,
            "ou": WHERE,
            "pourquoi": WHY,
            "combien de": COUNT,
            "combien": AMOUNT,
            "quelle heure": WHEN,
            "quelle date": WHEN,
        },
        numbers=_in_order("zero _ deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize", 0)
        | {"vingt": "20", "trente": "30", "cent": "100", "mille": "1000", "premier": "#1", "premiere": "#1", "deuxieme": "#2"},
        dates=_days(
            "lundi mardi mercredi jeudi vendredi samedi dimanche janvier fevrier mars avril mai juin juillet aout septembre octobre "
            "novembre decembre"
        )
        | {"demain": "tomorrow", "hier": "yesterday", "aujourd": "today", "aujourdhui": "today"},
    ),
    "es": Lexicon(
        function=word_set(
            "el la los las un una unos unas de del al a yo me mi mis mio tu te ti tus su sus se nos nuestro nuestra lo le les "
            "es son era esta estan estoy ser soy he ha han hay puedo puede pueden debo debe quiero tengo tiene y o pero si que "
            "quien cual cuales como cuando donde cuanto cuantos cuanta cuantas por para con en sobre desde hasta sin no muy "
            "mas tambien ya este esta esto ese hola gracias favor hacer hago"
        ),
        negation=word_set("no nunca jamas nada nadie ningun ninguno ninguna sin tampoco ni excepto salvo"),
        questions={
            "quien": WHO,
            "quienes": WHO,
            "cuando": WHEN,
            "donde": WHERE,
            "adonde": WHERE,
            "por que": WHY,
            "cuantos": COUNT,
            "cuantas": COUNT,
            "cuanto": AMOUNT,
            "cuanta": AMOUNT,
            "cuanto tiempo": DURATION,
            "que hora": WHEN,
        },
        numbers=_in_order("cero _ dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince", 0)
        | {"veinte": "20", "treinta": "30", "cien": "100", "mil": "1000", "primero": "#1", "primera": "#1", "segundo": "#2"},
        dates=_days(
            "lunes martes miercoles jueves viernes sabado domingo enero febrero marzo abril mayo junio julio agosto septiembre octubre "
            "noviembre diciembre"
        )
        | {"hoy": "today", "ayer": "yesterday", "manana": "tomorrow"},
    ),
    "it": Lexicon(
        function=word_set(
            "il lo la i gli le l un uno una di del della dei delle degli dell al alla ai alle da dal dalla in nel nella con su "
            "sul sulla per tra fra io mi mio mia miei mie tu ti tuo tua suo sua noi ci nostro voi vi vostro loro si e ed o ma "
            "se che chi cosa quale quali come quando dove perche quanto quanti quanta quante sono sei era ho ha hanno posso "
            "puo possono devo deve voglio vorrei non piu molto anche questo questa quello ciao grazie fare faccio c"
        ),
        negation=word_set("non mai niente nulla nessun nessuno nessuna senza neanche tranne"),
        questions={
            "chi": WHO,
            "quando": WHEN,
            "dove": WHERE,
            "dov": WHERE,
            "perche": WHY,
            "come mai": WHY,
            "quanti": COUNT,
            "quante": COUNT,
            "quanto": AMOUNT,
            "quanta": AMOUNT,
            "quanto tempo": DURATION,
            "che ora": WHEN,
        },
        numbers=_in_order("zero _ due tre quattro cinque sei sette otto nove dieci undici dodici", 0)
        | {"venti": "20", "trenta": "30", "cento": "100", "mille": "1000", "primo": "#1", "prima": "#1", "secondo": "#2", "terzo": "#3"},
        dates=_days(
            "lunedi martedi mercoledi giovedi venerdi sabato domenica gennaio febbraio marzo aprile maggio giugno luglio agosto settembre "
            "ottobre novembre dicembre"
        )
        | {"oggi": "today", "ieri": "yesterday", "domani": "tomorrow"},
    ),
    "pt": Lexicon(
        function=word_set(
            "o a os as um uma uns umas de do da dos das ao aos em no na nos nas por pelo pela para com sem sobre ate eu me meu "
            "minha meus minhas tu te teu tua voce voces seu sua seus suas nos nosso nossa ele ela eles elas se lhe isso isto "
            "este esta esse essa e ou mas que quem qual quais como quando onde porque quanto quantos quanta quantas sao foi "
            "era estou esta estao tenho tem posso pode podem devo deve quero preciso nao muito mais tambem ja ola obrigado "
            "obrigada favor fazer faco"
        ),
        negation=word_set("nao nunca jamais nada ninguem nenhum nenhuma sem nem exceto"),
        questions={
            "quem": WHO,
            "quando": WHEN,
            "onde": WHERE,
            "aonde": WHERE,
            "por que": WHY,
            "porque": WHY,
            "quantos": COUNT,
            "quantas": COUNT,
            "quanto": AMOUNT,
            "quanta": AMOUNT,
            "quanto tempo": DURATION,
            "que horas": WHEN,
        },
        numbers=_in_order("zero _ dois/duas tres quatro cinco seis sete oito nove dez onze doze", 0)
        | {"vinte": "20", "trinta": "30", "cem": "100", "mil": "1000", "primeiro": "#1", "primeira": "#1", "segundo": "#2"},
        dates=_days(
            "segunda terca quarta quinta sexta sabado domingo janeiro fevereiro marco abril maio junho julho "
            "agosto setembro outubro novembro dezembro"
        )
        | {"hoje": "today", "ontem": "yesterday", "amanha": "tomorrow"},
    ),
    "nl": Lexicon(
        function=word_set(
            "de het een ik mij me mijn jij je jou jouw u uw wij we ons onze hij hem zijn zij ze haar hun er is was waren ben "
            "bent wordt worden kan kunnen kon moet moeten mag wil zou heb heeft hebben had en of maar als dat omdat ook nog "
            "alleen al zo te van met bij voor op aan in om uit naar over onder door tegen zonder tot hoe wat wie waar wanneer "
            "waarom welke welk alsjeblieft hallo bedankt"
        ),
        negation=word_set("niet geen nooit niets niemand zonder noch behalve"),
        questions={
            "wie": WHO,
            "wanneer": WHEN,
            "waar": WHERE,
            "waarom": WHY,
            "hoeveel": AMOUNT,
            "hoe lang": DURATION,
            "hoe vaak": OFTEN,
            "hoe ver": FAR,
            "hoe oud": AGE,
            "hoe laat": WHEN,
        },
        numbers=_in_order("nul _ twee drie vier vijf zes zeven acht negen tien elf twaalf", 0)
        | {"twintig": "20", "honderd": "100", "duizend": "1000", "eerste": "#1", "tweede": "#2", "derde": "#3"},
        dates=_days(
            "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag januari februari maart april mei juni juli augustus september "
            "oktober november december"
        )
        | {"vandaag": "today", "gisteren": "yesterday", "morgen": "tomorrow"},
    ),
}


def _votes() -> dict[str, str]:
    """Function words that one language alone has, to that language."""
    seen = Counter(word for lexicon in LEXICONS.values() for word in lexicon.function | lexicon.negation)
    return {w: name for name, lexicon in LEXICONS.items() for w in lexicon.function | lexicon.negation if seen[w] == 1}


VOTES: Final = _votes()
