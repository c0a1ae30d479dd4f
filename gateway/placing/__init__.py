"""Where routing meets the gateway: what is known of each pool (`ground`), what a request depends on (`demands`), what attempts teach
(`lessons`), and how decisions are told to people (`explained`)."""
