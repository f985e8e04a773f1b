// Streams replies by OpenAI's and Anthropic's SDKs for Node. See openai_python.py.
//
//   node node.mjs chat|messages URL KEY
import { createInterface } from "node:readline";

const [api, url, key] = process.argv.slice(2);
const say = (event) => process.stdout.write(JSON.stringify(event) + "\n");

async function* streamChat(prompt, most) {
  const { default: OpenAI } = await import("openai");
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
  const messages = [{ role: "user", content: prompt }];
  const body = { model: "demo", messages, temperature: 0, max_tokens: most, stream: true, ignore_eos: true };
  for await (const chunk of await client.chat.completions.create(body)) {
    for (const choice of chunk.choices) yield (choice.delta.reasoning_content ?? "") + (choice.delta.content ?? "");
  }
}

async function* streamMessages(prompt, most) {
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
  const messages = [{ role: "user", content: prompt }];
  for await (const event of await client.messages.create({
    model: "demo", messages, temperature: 0, max_tokens: most, stream: true,
  })) {
    if (event.type === "content_block_delta") yield event.delta.text ?? event.delta.thinking ?? "";
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const { prompt, most } = JSON.parse(line);
  let text = "";
  try {
    for await (const part of (api === "chat" ? streamChat : streamMessages)(prompt, most)) {
      if (part && !text) say({ begun: true });
      text += part;
    }
    say({ text });
  } catch (error) {
    say({ text, error: String(error) });
  }
}
