"""The native engine without a server: answers, log-probabilities, the prefix cache."""

from harmonium import LLM, SamplingParams

llm = LLM("nano")  # or "gpt-oss-20b", or the folder of a checkpoint
sampling = SamplingParams(max_tokens=200, temperature=0, logprobs=2)

questions = ["What is the capital of France?", "Tell me a joke."]
conversations = [[{"role": "user", "content": question}] for question in questions]

for question, answer in zip(questions, llm.chat(conversations, sampling), strict=True):
    print(question, "->", answer.text)

again = llm.chat(conversations, sampling)
print("Cached tokens of the second run:", [each.num_cached_tokens for each in again])
print("Its first token and two rivals:", again[0].logprobs[0])

[text] = llm.generate(["The quick brown fox"], SamplingParams(max_tokens=8, seed=1))
print("Continued:", text.text)
