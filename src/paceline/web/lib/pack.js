// Text small enough for a link: deflated, in base64 that URLs need not escape.

/** @param {string} text */
export async function pack(text) {
  const bytes = await through(new Blob([text]), new CompressionStream("deflate-raw"));
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** Return the text that pack() packed. Throws for anything else. @param {string} packed */
export async function unpack(packed) {
  const binary = atob(packed.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
  const text = await through(new Blob([bytes]), new DecompressionStream("deflate-raw"));
  return new TextDecoder().decode(text);
}

/** @param {Blob} blob @param {CompressionStream | DecompressionStream} stream */
async function through(blob, stream) {
  return new Uint8Array(await new Response(blob.stream().pipeThrough(stream)).arrayBuffer());
}
