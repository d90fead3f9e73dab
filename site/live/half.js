/* Numbers in half precision (IEEE 754 binary16), as text: how the weights come to the page. */

/* Base64 -> bytes. */
export function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/* One half-precision number, given by its 16 bits. */
export function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/* Base64 of little-endian half-precision numbers -> { name: Float32Array }, by a list of [name, number of values]. */
export function tensorsOf(base64, list) {
  const bytes = bytesOf(base64), table = new Float32Array(65536), tensors = {};
  for (let bits = 0; bits < 65536; bits++) table[bits] = half(bits);
  let at = 0;
  for (const [name, length] of list) {
    const values = (tensors[name] = new Float32Array(length));
    for (let i = 0; i < length; i++, at += 2) values[i] = table[bytes[at] | (bytes[at + 1] << 8)];
  }
  if (at !== bytes.length) throw new Error(`got ${bytes.length} bytes of weights; the list has ${at}`);
  return tensors;
}
