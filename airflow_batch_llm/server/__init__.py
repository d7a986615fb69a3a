"""A local batch server: provider batch protocols over real HTTP, for trying, for tests, for one GPU box.

Which file holds what:

========================  ==========================================================================
``settings``              what a server is started with; key and address rules
``database``              the SQLite file: schema, one connection a thread
``files``, ``batches``    stored files and batches, each state change a named compare-and-set
``charge_log``,           what was executed and would have been charged; which calls were made
``request_log``
``scenario``, ``faults``  how the server is told to misbehave, and the counters behind that
``wire``                  the seams: dialect (line format), upstream (who answers), plain values
``openai_lines``          the OpenAI dialect: checks input lines, writes result rows
``chat``, ``responses``,  one endpoint each, as the simulated model serves it
``completions``,
``embeddings``,
``moderations``
``replies``, ``inputs``   what the endpoints share: reading and refusing bodies, error envelopes
``simulated``             the simulated model; ``schema_instances``, ``labelled_values`` and ``word_match``
                          fill JSON schemas
``upstreams``             who answers: the simulated model, or an OpenAI-compatible server
``local_model``,          llama.cpp in this process; ``local_model_file`` knows the model's file,
``local_model_text``      ``local_model_text`` what it is asked
``validation``, ``rows``  a batch's file checked; a piece of a batch executed
``result_files``          the finished result files, in order or as a scenario wants them
``engine``                the thread that moves batches
``gemini_api``            the Gemini API: ``gemini_uploads``, ``gemini_create`` (create calls),
                          ``gemini_lines`` (its dialect), ``gemini_members`` (what its requests may hold),
                          ``gemini_requests`` and ``gemini_schemas`` (to OpenAI's form), ``gemini_replies``
                          (back from it), ``gemini_objects``, ``gemini_refusals``
``azure_api``             Azure OpenAI: OpenAI's handlers and dialect with what differs; ``azure_lines``
``mistral_api``           Mistral: ``mistral_files``, ``mistral_jobs`` and ``mistral_list``,
                          ``mistral_create``, ``mistral_validation`` (a file checked at upload),
                          ``mistral_lines`` (its dialect), ``mistral_bodies`` (to OpenAI's form and back),
                          ``mistral_objects``, ``mistral_paths`` (what needs no key)
``looks``                 how a scenario shows batches differently from look to look
``openai_api``, ``admin_api``, ``uploads``, ``downloads``, ``app``, ``serving``   HTTP
========================  ==========================================================================
"""
