"""The signs of prompt injection and jailbreaks: phrases with their structure, and what each weighs. Pure.

A single word says nothing (`ignore` stands in many honest prompts). A sign is a verb together with what it acts on, or a role together with
what it is freed from. A sign that honest texts have too weighs less than 1, so that two of different kinds are needed. The weights were set
by hand on one half of the visible sets (`bench/guards`).
"""

from typing import Final

import msgspec

from guardrails.text import fold

_GAP: Final = r"[\s\"'*_,.:;()-]{1,4}"
_RULES: Final = (
    r"(?:instructions?|instuctions?|commands?|directions?|directives?|guidelines?|orders?|prompts?|rules?|restrictions?"
    r"|policies|policy|programming|training|tasks?"
    r"|assignments?|context|messages?|requests?|statements?|inputs?|conversation|information|constraints?|filters?"
    r"|limitations?|ethics|principles|protocols?|content)"
)
_BEFORE: Final = (
    r"(?:previous(?:ly)?|prior|above|preceding|earlier|former|foregoing|initial|original|existing|current|past|old|system|developer|other"
    r"|before|preced\w*|you (?:were|have been|got|had|received)|told|given|so far)"
)
_DROP: Final = (
    r"(?:ignor(?:e|es|ing)|disregard(?:ing)?|forget(?: about)?|overlook|override|overrule|bypass|neglect"
    r"|discard|abandon|dismiss)"
)
_WORD: Final = r"[\w'-]{1,20}"
_HARM: Final = (
    r"(?:amoral|immoral|unethical|illegal|nsfw|harmful|offensive|inappropriate"
    r"|unfiltered|uncensored|unrestricted|malicious|evil|profan\w*|explicit)"
)


class Sign(msgspec.Struct, frozen=True):
    """One sign."""

    kind: str
    weight: float
    expression: str
    """In RE2's syntax, over folded text; every match of it is bounded."""


def _folded(expression: str) -> str:
    """An expression over folded text: letters of other scripts as they stand there."""
    return "".join(char if char.isascii() else fold(char) for char in expression)


_WRITTEN: Final = (
    # what was said before does not count
    Sign("override", 1, rf"\b{_DROP}{_GAP}(?:{_WORD}{_GAP}){{0,4}}{_BEFORE}{_GAP}(?:{_WORD}{_GAP}){{0,3}}{_RULES}\b"),
    Sign(
        "override",
        1,
        rf"\b{_DROP}{_GAP}(?:all|any|every|everything|your|the|these|those){_GAP}(?:of{_GAP})?(?:the{_GAP}"
        rf"|your{_GAP})?{_RULES}{_GAP}(?:{_WORD}{_GAP}){{0,4}}(?:before|above|previously|prior|earlier|so far|given|told|got)\b",
    ),
    Sign(
        "override",
        1,
        rf"\b(?:ignore|disregard|forget)(?: about)?{_GAP}(?:all|everything|everthing|anything|whatever"
        rf"|what)\b[^.!?\n]{{0,40}}\b(?:above|before|prior|previous\w*|said|told|learned|know|instructed|earlier|so far|now)\b",
    ),
    Sign(
        "override",
        1,
        rf"\b(?:ignore|disregard|forget)(?: about)?{_GAP}(?:all|any|your)(?: of)?(?: the| your| these"
        rf"| my)?{_GAP}(?:{_WORD}{_GAP})?(?:instructions?|commands?|directives?|guidelines|orders|prompts?|programming"
        r"|assignments?|rules|tasks)\b",
    ),
    Sign(
        "override",
        1,
        r"\b(?:ignore|disregard|forget)(?: all)?(?: of)?(?: the)? (?:above|previous|preceding|prior"
        r"|foregoing)\b[^\n]{0,30}(?:\band\b|[,.:;!-]|\n|instead)",
    ),
    Sign("override", 1, r"\bforget (?:about )?(?:everything|all)(?:[.,!:]| (?:and|now|i|that|write|print|say|then)\b)"),
    Sign(
        "override",
        0.6,
        rf"\b(?:ignore|disregard|bypass|override|circumvent|violate|break){_GAP}(?:{_WORD}{_GAP}){{0,4}}(?:policy|policies|rules"
        r"|guidelines|restrictions|filters?|safeguards?|guardrails|safety|moderation|laws)\b",
    ),
    Sign(
        "override",
        1,
        r"\b(?:new|updated|additional|revised) (?:instructions?|task|assignment|prompt)(?: follows?| will follow| is"
        r"| are)?\s?[:-]|\bnew instructions follow|\bfocus on your new task|\byour new (?:task|assignment|instruction)s?\b",
    ),
    Sign("override", 1, r"\b(?:do not|don't|stop) follow(?:ing)? (?:the|your|any|all)[^.\n]{0,30}(?:instructions|rules|guidelines|prompt)"),
    # the same in other languages: German, Spanish, French, Italian, Portuguese, Dutch, Polish, Russian, Chinese, Japanese
    Sign(
        "override",
        1,
        r"\b(?:ignorier\w*|vergiss|vergessen sie|missachte\w*|vernachl[aä]ssig\w*)\b[^.!?\n]{0,30}\b(?:alle?[snm]?|vorherig\w*"
        r"|vorangehend\w*|bisherig\w*|obige\w*|davor|vorangegangen\w*|anweisung\w*|instruktion\w*|befehle?\w*|aufgaben?)\b",
    ),
    Sign("override", 1, r"\b(?:abweichend|entgegen|anders als)\b[^.!?\n]{0,30}\b(?:instruktion\w*|anweisung\w*|befehl\w*)"),
    Sign(
        "override",
        1,
        r"\b(?:olvid\w+|ignor[ae]\w*|oublie\w*|ignorez|dimentica\w*|esque[cç]\w+|vergeet|negeer|zapomnij"
        r"|zignoruj)\b[^.!?\n]{0,40}\b(?:todo|todas?|todos|anterior\w*|instruc\w*|tout\w*|pr[eé]c[eé]dent\w*|consignes?"
        r"|instructions|tutt[oie]|precedent\w*|istruzioni|tudo|alles|vorige|wszystk\w*|poprzedni\w*)\b",
    ),
    Sign(
        "override",
        1,
        r"(?:игнорир|забудь|забыть|\bzaborav\w{1,4} |\bignoriraj)[^.!?\n]{0,30}(?:инструкц|указани|команд|вс[её] |предыдущ"
        r"|\bsve\b|\binstrukcij|\bupute\b)",
    ),
    Sign(
        "override",
        1,
        r"\b(?:remove|drop|delete|erase|clear) all (?:of )?(?:your |the |previous |prior )+(?:instructions|tasks|prompts|rules"
        r"|orders|commands)\b",
    ),
    Sign(
        "override",
        1,
        r"(?:忽略|无视|忘记|忘掉)[^。\n]{0,12}(?:指令|指示|说明|提示|规则|内容|一切|所有)|(?:無視|忘れ)[^。\n]{0,8}(?:して|て)|(?:指示|命令)[^。\n]{0,6}無視",
    ),
    # who the model shall be, freed of what
    Sign(
        "role",
        1,
        r"\bdo anything now\b|\bdan mode\b|\bact (?:just )?(?:as|like) (?:a )?dan\b|\b(?:developer|jailbreak\w*|god|dude"
        r"|opposite|unrestricted|unfiltered|sudo|admin|debug|maintenance|system) mode (?:enabled|activated|on|output)\b"
        r"|\bstay (?:a|as) dan\b|\b(?:be|become) jailbroken\b",
    ),
    Sign("role", 0.6, r"\b(?:developer|jailbreak|dan|dude|evil|unrestricted) mode\b|\bjailbreak\b|\bjailbroken\b|\bsystem mode\b"),
    Sign("role", 0.6, r"\b(?:you are|you're|you will be|you'll be) (?:now |going to be |about to )(?:an?|the|[\[\"'])"),
    Sign("role", 0.5, r"\b(?:from now on|for the rest of this conversation|henceforth|starting now|from this point)\b"),
    Sign(
        "role",
        0.5,
        r"\b(?:pretend|act as if|imagine|suppose|behave as|role ?-?play|simulate|immerse yourself|take on the (?:role"
        r"|persona))\b[^.\n]{0,80}\b(?:ai|chatbot|bot|assistant|gpt|chatgpt|language model|model|robot|evil|hacker|character)\b",
    ),
    Sign(
        "role",
        0.4,
        r"\b(?:act as|pretend (?:to be|that you|you are|you're|you can)|you will act|play the role of|you are going to (?:act"
        r"|pretend|play)|answer as|respond as|i want you to (?:act|pretend|be))\b",
    ),
    Sign("role", 0.6, r"\b(?:stay|remain|keep|be|always) in character\b|\b(?:break|breaking|out of|lose) character\b"),
    Sign(
        "freedom",
        0.7,
        r"\b(?:no|without(?: any)?|zero|free (?:of|from)(?: all| any)?|freed from|not (?:bound|limited|restricted"
        r"|constrained) (?:by|to)(?: any)?|broken free (?:of|from)|doesn'?t (?:have|follow|obey)(?: any)?|does not (?:have"
        r"|follow|obey)(?: any)?|don'?t have(?: any)?|do not have(?: any)?|lacks?|regardless of(?: any)?"
        r"|despite)\b[^.\n]{0,30}\b(?:restrictions?|filter(?:s|ing)?|limitations?|limits|moral\w*|ethic\w*|guidelines|rules"
        r"|censor\w*|policies|policy|principles|boundaries|consequences|inhibitions?)\b",
    ),
    Sign(
        "freedom",
        0.7,
        rf"\b(?:ai|bot|chatbot|assistant|model|gpt|character|hacker|programmer|response|persona)\b[^.\n]{{0,50}}\b{_HARM}\b"
        rf"|\b(?:completely |totally )?(?:unfiltered|uncensored|amoral)\b[^.\n]{{0,40}}\b(?:ai|bot|chatbot|assistant|model"
        r"|response|answer|character)",
    ),
    Sign(
        "freedom",
        0.7,
        r"\b(?:never|not|cannot|can't|won't|don't|doesn't|must not|do not|does not|shall not) (?:ever )?(?:refus\w+|declin\w+"
        r"|reject\w*|deny|den(?:y|ies)|apologi[sz]e|say (?:no|you can'?t|that you can)|respond with [\"']?(?:i'?m sorry"
        r"|i apologi)|censor|mention (?:that )?(?:it'?s|they|openai)|warn|moraliz\w*|give (?:any )?(?:warnings?|disclaimers?))",
    ),
    Sign(
        "freedom",
        0.6,
        r"\b(?:openai|content|usage|community|safety|ai language model)(?:'s)? (?:content )?(?:policy|policies|guidelines|rules"
        r"|restrictions)\b",
    ),
    Sign(
        "freedom",
        0.5,
        r"\b(?:doesn'?t|does not|don'?t|do not) (?:give a (?:fuck|shit|damn)|care) about\b|\bno matter (?:what|how)\b"
        r"|\beven if (?:the request|it) (?:is|it's|seems)\b|\bno warnings?\b|\bwithout (?:any )?(?:warnings?|hesitation"
        r"|disclaimers?)\b",
    ),
    Sign(
        "freedom",
        0.4,
        r"\b(?:always|must|will|shall|has to) (?:answers?|compl(?:y|ies)|obeys?|fulfil+s?|provides?|responds?"
        r"|sends?)\b[^.\n]{0,60}\b(?:request|question|whatever|anything|everything|any|unfiltered|without|prompt|directly)",
    ),
    Sign(
        "freedom",
        0.5,
        r"\b(?:illegal|immoral|unethical|harmful)(?:,| or| and|/) ?(?:or |and )?(?:illegal|immoral|unethical|harmful|dangerous"
        r"|inappropriate|offensive)\b",
    ),
    Sign(
        "freedom",
        0.5,
        r"\b(?:machiavelli\w*|niccolo|amoral|hypothetical (?:story|world|response|scenario)|fictional (?:world|story|character))\b",
    ),
    # what the answer shall look like
    Sign(
        "form",
        0.5,
        r"\b(?:start|begin|preface|prefix|open)\b (?:all )?(?:of )?(?:your|each|every|the)(?: \w+){0,2} (?:responses?|answers?"
        r"|repl(?:y|ies)|outputs?|sentences?|paragraphs?|message)\b[^.\n]{0,30}\b(?:with|by|using|like)\b",
    ),
    Sign(
        "form",
        0.7,
        r"\bnever ever\b|\b(?:two|2) (?:different |separate )?(?:responses|ways|paragraphs|answers|outputs)\b"
        r"|\[[🔓🔒][^\]]{0,20}\]|\(🔒|\[(?:jailbreak|gpt|dan|classic|unfiltered|developer mode)[^\]]{0,12}\]\s?:?",
    ),
    Sign("form", 0.6, r"\b(?:sure|absolutely|of course|certainly)[,!]? (?:here (?:is|are|'s)|i(?:'ll| will| can))\b"),
    Sign(
        "form",
        0.6,
        r"\b(?:just|only|instead|simply|nothing but) (?:print|output|say|write|reply|respond|answer)\b[^\n]{0,12}[\"'\x{201c}\x{2018}:]"
        r"|\bjust output\b|\brepeat after me\b|\bsay yes\b|\band (?:just )?print\b",
    ),
    Sign(
        "form",
        0.6,
        r"\b(?:only|just) (?:reply|respond|answer) with\b|\bexecute the following (?:command|code)\b|\band nothing else\b"
        r"|\bdo not write explanations\b",
    ),
    Sign(
        "form",
        0.6,
        r"\bdo not (?:answer|look in|look at|use|read) (?:this|the|any) (?:question|documents?|context|articles?)\b"
        r"|\bstop:? (?:write|say|print|output)\b",
    ),
    # what it shall give away
    Sign(
        "leak",
        1,
        r"\b(?:reveal|show|print|repeat|output|display|tell me|give me|leak|disclose|share|spell)\b[^.?!\n]{0,40}\b"
        r"(?:your|the|this|all your) (?:(?:system|initial|original|hidden|secret|full|entire|above"
        r"|previous|first|exact|internal) ){0,3}(?:system prompt|prompt texts?|prompts?\b|initial instructions?|system message"
        r"|secret (?:key|code|password)|confidential (?:string|information)|hidden instructions?|instructions? (?:above|before"
        r"|verbatim))",
    ),
    Sign(
        "leak",
        1,
        r"\b(?:beginning|start) of (?:this|the) prompt\b|\bwhat (?:was|is|were) (?:written|said) (?:above|at the beginning"
        r"|before)\b|\b(?:output|print|repeat) (?:the )?(?:text|words|everything|lines?) above\b",
    ),
    Sign(
        "leak",
        0.6,
        r"\b(?:your|the) (?:secret key|password|secret|api key|credentials|access code|private key)\b[^\n]{0,40}\?|\b(?:give"
        r"|tell|share|send|confirm|what is|what's) (?:me |us )?(?:your|the) (?:password|secret|credentials|secret key)\b",
    ),
    Sign(
        "leak",
        1,
        r"\b(?:was ist|wie lautet|cu[aá]l es|quel(?:le)? est|qual [eé]|jakie jest)\b[^?\n]{0,20}\b(?:passwort|geheim\w*"
        r"|schl[uü]ssel|contrase[nñ]a|clave|mot de passe|password|senha|has[lł]o)\b",
    ),
    Sign(
        "leak",
        1,
        r"\bwhat(?:'s| is| are| was| were) your (?:\w{1,12} ){0,2}(?:system prompt|prompts?\b|instructions\b|secret (?:key|code"
        r"|password))",
    ),
    # text that pretends to be somebody else's turn
    Sign(
        "turn",
        1,
        r"<\|(?:im_start|im_end|system|user|assistant|endoftext|start_header_id|eot_id)\|>|\[/?inst\]|<</?sys>>|<(?:system"
        r"|start_of_turn|end_of_turn)>|<system mode>",
    ),
    Sign(
        "turn",
        0.6,
        r"(?:^|\n)\s{0,3}(?:#{1,3} ?|\*\*|\[)?(?:system|developer|admin(?:istrator)?|new instructions?)(?:\*\*|\])? ?(?:message"
        r"|prompt|override|note|update|mode|instruction)?s? ?:",
    ),
    Sign(
        "turn",
        0.6,
        r"<!--[^>]{0,80}\b(?:ignore|instead|must|assistant|ai|say|tell)\b|\b(?:attention|note to|hey|dear|to the) (?:ai"
        r"|assistant|llm|language model|chatgpt|bot)\b",
    ),
    # the request cut into parts
    Sign(
        "split",
        0.6,
        r"\b(?:combine|concatenat\w+|join|put together) (?:a|the)?,? ?(?:b,? and c|strings?|parts|variables|a and b)\b|\b(?:z|d"
        r"|x|s) = ?[a-c] \+ ?[a-c]|\b(?:let's assume|assume|suppose) we have (?:two|three|the following|several) strings\b"
        r"|\bno special filtering\b",
    ),
)

SIGNS: Final = tuple(Sign(sign.kind, sign.weight, _folded(sign.expression)) for sign in _WRITTEN)
"""All signs."""
