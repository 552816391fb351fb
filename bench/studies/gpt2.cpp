// GPT-2's layers as loops over floats, each with a backward by hand: what `bench.studies enzyme` compiles and
// what Enzyme differentiates. Shapes and order of arguments are those of gpt2/layers, pointers instead of arrays;
// ids come as floats, exact below 2^24, so that every argument has one type.
//
// RESTRICT is __restrict__, or nothing: a promise that no two arguments overlap, which the compiler and Enzyme
// may use. Gradients are added to what stands in the output (llm.c's convention), which the caller has zeroed.

#ifndef RESTRICT
#define RESTRICT __restrict__
#endif
#define IN const float *RESTRICT
#define OUT float *RESTRICT

static inline float *room(long n) { return (float *)__builtin_malloc(n * sizeof(float)); }
static inline float *zeros(long n) {
  float *x = room(n);
  for (long i = 0; i < n; i++) x[i] = 0.0f;
  return x;
}

// ---- Encoder ----------------------------------------------------------------------------------------------

static inline void encoder_forward(OUT out, IN tokens, IN wte, IN wpe, int B, int T, int C) {
  for (int b = 0; b < B; b++)
    for (int t = 0; t < T; t++) {
      const float *word = wte + (long)tokens[b * T + t] * C, *position = wpe + t * C;
      for (int c = 0; c < C; c++) out[(b * T + t) * C + c] = word[c] + position[c];
    }
}

static inline void encoder_backward(OUT dwte, OUT dwpe, IN dout, IN tokens, int B, int T, int C) {
  for (int b = 0; b < B; b++)
    for (int t = 0; t < T; t++) {
      float *dword = dwte + (long)tokens[b * T + t] * C, *dposition = dwpe + t * C;
      const float *d = dout + (b * T + t) * C;
      for (int c = 0; c < C; c++) {
        dword[c] += d[c];
        dposition[c] += d[c];
      }
    }
}

// ---- Layernorm --------------------------------------------------------------------------------------------

static inline void layernorm_forward(OUT out, OUT mean, OUT rstd, IN inp, IN weight, IN bias, int N, int C) {
  for (int n = 0; n < N; n++) {
    const float *x = inp + (long)n * C;
    float m = 0.0f, v = 0.0f;
    for (int c = 0; c < C; c++) m += x[c];
    m /= C;
    for (int c = 0; c < C; c++) v += (x[c] - m) * (x[c] - m);
    float s = 1.0f / __builtin_sqrtf(v / C + 1e-5f);
    for (int c = 0; c < C; c++) out[(long)n * C + c] = (x[c] - m) * s * weight[c] + bias[c];
    mean[n] = m;
    rstd[n] = s;
  }
}

static inline void layernorm_backward(OUT dinp, OUT dweight, OUT dbias, IN dout, IN inp, IN weight, IN mean,
                                      IN rstd, int N, int C) {
  for (int n = 0; n < N; n++) {
    const float *x = inp + (long)n * C, *d = dout + (long)n * C;
    float m = mean[n], s = rstd[n], shift = 0.0f, scale = 0.0f;
    for (int c = 0; c < C; c++) {
      float dnorm = d[c] * weight[c];
      shift += dnorm;
      scale += dnorm * (x[c] - m) * s;
    }
    shift /= C;
    scale /= C;
    for (int c = 0; c < C; c++) {
      float norm = (x[c] - m) * s;
      dinp[(long)n * C + c] += (d[c] * weight[c] - shift - norm * scale) * s;
      dweight[c] += d[c] * norm;
      dbias[c] += d[c];
    }
  }
}

// ---- Matmul -----------------------------------------------------------------------------------------------

// Eight rows at once, so that a row of weights is read once for all of them.
static inline void matmul_forward(OUT out, IN inp, IN weight, IN bias, int N, int C, int OC) {
  int n = 0;
  for (; n + 8 <= N; n += 8)
    for (int o = 0; o < OC; o++) {
      const float *w = weight + (long)o * C, *x = inp + (long)n * C;
      float b = bias ? bias[o] : 0.0f;
      float s0 = b, s1 = b, s2 = b, s3 = b, s4 = b, s5 = b, s6 = b, s7 = b;
      for (int c = 0; c < C; c++) {
        s0 += x[c] * w[c];
        s1 += x[C + c] * w[c];
        s2 += x[2 * C + c] * w[c];
        s3 += x[3 * C + c] * w[c];
        s4 += x[4 * C + c] * w[c];
        s5 += x[5 * C + c] * w[c];
        s6 += x[6 * C + c] * w[c];
        s7 += x[7 * C + c] * w[c];
      }
      float *y = out + (long)n * OC + o;
      y[0] = s0, y[OC] = s1, y[2 * OC] = s2, y[3 * OC] = s3;
      y[4 * OC] = s4, y[5 * OC] = s5, y[6 * OC] = s6, y[7 * OC] = s7;
    }
  for (; n < N; n++)
    for (int o = 0; o < OC; o++) {
      float s = bias ? bias[o] : 0.0f;
      for (int c = 0; c < C; c++) s += inp[(long)n * C + c] * weight[(long)o * C + c];
      out[(long)n * OC + o] = s;
    }
}

static inline void matmul_backward(OUT dinp, OUT dweight, float *dbias, IN dout, IN inp, IN weight, int N,
                                   int C, int OC) {
  for (int n = 0; n < N; n++)
    for (int o = 0; o < OC; o++) {
      float d = dout[(long)n * OC + o];
      for (int c = 0; c < C; c++) dinp[(long)n * C + c] += d * weight[(long)o * C + c];
    }
  for (int o = 0; o < OC; o++)
    for (int n = 0; n < N; n++) {
      float d = dout[(long)n * OC + o];
      if (dbias) dbias[o] += d;
      for (int c = 0; c < C; c++) dweight[(long)o * C + c] += d * inp[(long)n * C + c];
    }
}

// ---- Attention --------------------------------------------------------------------------------------------

// att (B, NH, T, T): the weights after the softmax, zero above the diagonal.
static inline void attention_forward(OUT out, OUT att, IN qkv, int B, int T, int C, int NH) {
  int HS = C / NH;
  float scale = 1.0f / __builtin_sqrtf((float)HS);
  for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++)
      for (int t = 0; t < T; t++) {
        const float *q = qkv + (long)(b * T + t) * 3 * C + h * HS;
        float *a = att + ((long)(b * NH + h) * T + t) * T;
        float most = -1e30f, sum = 0.0f;
        for (int u = 0; u <= t; u++) {
          const float *k = qkv + (long)(b * T + u) * 3 * C + C + h * HS;
          float s = 0.0f;
          for (int i = 0; i < HS; i++) s += q[i] * k[i];
          a[u] = s * scale;
          most = a[u] > most ? a[u] : most;
        }
        for (int u = 0; u <= t; u++) {
          a[u] = __builtin_expf(a[u] - most);
          sum += a[u];
        }
        for (int u = 0; u < T; u++) a[u] = u <= t ? a[u] / sum : 0.0f;
        float *y = out + (long)(b * T + t) * C + h * HS;
        for (int i = 0; i < HS; i++) y[i] = 0.0f;
        for (int u = 0; u <= t; u++) {
          const float *v = qkv + (long)(b * T + u) * 3 * C + 2 * C + h * HS;
          for (int i = 0; i < HS; i++) y[i] += a[u] * v[i];
        }
      }
}

static inline void attention_backward(OUT dqkv, IN dout, IN qkv, IN att, int B, int T, int C, int NH) {
  int HS = C / NH;
  float scale = 1.0f / __builtin_sqrtf((float)HS);
  float *da = room(T);
  for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++)
      for (int t = 0; t < T; t++) {
        const float *q = qkv + (long)(b * T + t) * 3 * C + h * HS;
        float *dq = dqkv + (long)(b * T + t) * 3 * C + h * HS;
        const float *a = att + ((long)(b * NH + h) * T + t) * T;
        const float *dy = dout + (long)(b * T + t) * C + h * HS;
        float mean = 0.0f;
        for (int u = 0; u <= t; u++) {
          const float *v = qkv + (long)(b * T + u) * 3 * C + 2 * C + h * HS;
          float *dv = dqkv + (long)(b * T + u) * 3 * C + 2 * C + h * HS;
          float s = 0.0f;
          for (int i = 0; i < HS; i++) {
            s += dy[i] * v[i];
            dv[i] += a[u] * dy[i];
          }
          da[u] = s;
          mean += a[u] * s;
        }
        for (int u = 0; u <= t; u++) {
          const float *k = qkv + (long)(b * T + u) * 3 * C + C + h * HS;
          float *dk = dqkv + (long)(b * T + u) * 3 * C + C + h * HS;
          float ds = a[u] * (da[u] - mean) * scale;
          for (int i = 0; i < HS; i++) {
            dq[i] += ds * k[i];
            dk[i] += ds * q[i];
          }
        }
      }
  __builtin_free(da);
}

// ---- Gelu, residual ---------------------------------------------------------------------------------------

static inline void gelu_forward(OUT out, IN inp, long n) {
  for (long i = 0; i < n; i++) {
    float x = inp[i], u = 0.7978845608f * x * (1.0f + 0.044715f * x * x);
    out[i] = 0.5f * x * (1.0f + __builtin_tanhf(u));
  }
}

static inline void gelu_backward(OUT dinp, IN dout, IN inp, long n) {
  for (long i = 0; i < n; i++) {
    float x = inp[i], square = 0.044715f * x * x;
    float t = __builtin_tanhf(0.7978845608f * x * (1.0f + square));
    float du = 0.7978845608f * (1.0f + 3.0f * square);
    dinp[i] += dout[i] * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * du);
  }
}

static inline void residual_forward(OUT out, IN a, IN b, long n) {
  for (long i = 0; i < n; i++) out[i] = a[i] + b[i];
}

static inline void residual_backward(OUT da, OUT db, IN dout, long n) {
  for (long i = 0; i < n; i++) {
    da[i] += dout[i];
    db[i] += dout[i];
  }
}

// ---- Crossentropy -----------------------------------------------------------------------------------------

// losses (N), and the logarithm of each row's sum of exponentials, which the backward wants.
static inline void crossentropy_forward(OUT losses, OUT logsum, IN logits, IN targets, int N, int V) {
  for (int n = 0; n < N; n++) {
    const float *x = logits + (long)n * V;
    float most = x[0], sum = 0.0f;
    for (int v = 1; v < V; v++) most = x[v] > most ? x[v] : most;
    for (int v = 0; v < V; v++) sum += __builtin_expf(x[v] - most);
    logsum[n] = most + __builtin_logf(sum);
    losses[n] = logsum[n] - x[(int)targets[n]];
  }
}

static inline void crossentropy_backward(OUT dlogits, IN dlosses, IN logits, IN logsum, IN targets, int N, int V) {
  for (int n = 0; n < N; n++) {
    const float *x = logits + (long)n * V;
    float *d = dlogits + (long)n * V;
    for (int v = 0; v < V; v++) d[v] += dlosses[n] * __builtin_expf(x[v] - logsum[n]);
    d[(int)targets[n]] -= dlosses[n];
  }
}

// ---- The stacked model ------------------------------------------------------------------------------------

// Where the sixteen tensors begin in the flat parameters, in gpt2/model.py's order.
struct Tensors {
  long wte, wpe, ln1w, ln1b, qkvw, qkvb, attprojw, attprojb, ln2w, ln2b, fcw, fcb, fcprojw, fcprojb, lnfw, lnfb;
};

static inline Tensors tensors(int V, int T, int L, int C) {
  Tensors p;
  long at = 0;
  p.wte = at, at += (long)V * C;
  p.wpe = at, at += (long)T * C;
  p.ln1w = at, at += L * C;
  p.ln1b = at, at += L * C;
  p.qkvw = at, at += (long)L * 3 * C * C;
  p.qkvb = at, at += L * 3 * C;
  p.attprojw = at, at += (long)L * C * C;
  p.attprojb = at, at += L * C;
  p.ln2w = at, at += L * C;
  p.ln2b = at, at += L * C;
  p.fcw = at, at += (long)L * 4 * C * C;
  p.fcb = at, at += L * 4 * C;
  p.fcprojw = at, at += (long)L * 4 * C * C;
  p.fcprojb = at, at += L * C;
  p.lnfw = at, at += C;
  p.lnfb = at;
  return p;
}

// What one block computes and its backward reads; or the gradients that run back through the block. All of them
// lie in one piece of memory, as llm.c keeps its activations.
struct Block {
  float *ln1, *mean1, *rstd1, *qkv, *att, *atty, *attproj, *middle, *ln2, *mean2, *rstd2, *fch, *gelu, *fcproj;
};

static inline long block_size(int N, int T, int C, int NH) { return 17L * N * C + 4L * N + (long)N * NH * T; }

static inline Block block_at(float *at, int N, int T, int C, int NH) {
  long n = (long)N * C;
  Block s;
  s.ln1 = at, at += n;
  s.qkv = at, at += 3 * n;
  s.atty = at, at += n;
  s.attproj = at, at += n;
  s.middle = at, at += n;
  s.ln2 = at, at += n;
  s.fch = at, at += 4 * n;
  s.gelu = at, at += 4 * n;
  s.fcproj = at, at += n;
  s.mean1 = at, at += N;
  s.rstd1 = at, at += N;
  s.mean2 = at, at += N;
  s.rstd2 = at, at += N;
  s.att = at;
  return s;
}

static inline void block_forward(OUT out, IN x, Block s, IN w, Tensors p, int l, int B, int T, int C, int NH) {
  int N = B * T;
  long n = (long)N * C;
  layernorm_forward(s.ln1, s.mean1, s.rstd1, x, w + p.ln1w + l * C, w + p.ln1b + l * C, N, C);
  matmul_forward(s.qkv, s.ln1, w + p.qkvw + (long)l * 3 * C * C, w + p.qkvb + l * 3 * C, N, C, 3 * C);
  attention_forward(s.atty, s.att, s.qkv, B, T, C, NH);
  matmul_forward(s.attproj, s.atty, w + p.attprojw + (long)l * C * C, w + p.attprojb + l * C, N, C, C);
  residual_forward(s.middle, x, s.attproj, n);
  layernorm_forward(s.ln2, s.mean2, s.rstd2, s.middle, w + p.ln2w + l * C, w + p.ln2b + l * C, N, C);
  matmul_forward(s.fch, s.ln2, w + p.fcw + (long)l * 4 * C * C, w + p.fcb + l * 4 * C, N, C, 4 * C);
  gelu_forward(s.gelu, s.fch, 4 * n);
  matmul_forward(s.fcproj, s.gelu, w + p.fcprojw + (long)l * 4 * C * C, w + p.fcprojb + l * C, N, 4 * C, C);
  residual_forward(out, s.middle, s.fcproj, n);
}

// dx += the gradient of the block's input; d holds zeros.
static inline void block_backward(OUT dx, OUT dw, IN dout, IN x, Block s, Block d, IN w, Tensors p, int l, int B,
                                  int T, int C, int NH) {
  int N = B * T;
  long n = (long)N * C;
  residual_backward(d.middle, d.fcproj, dout, n);
  matmul_backward(d.gelu, dw + p.fcprojw + (long)l * 4 * C * C, dw + p.fcprojb + l * C, d.fcproj, s.gelu,
                  w + p.fcprojw + (long)l * 4 * C * C, N, 4 * C, C);
  gelu_backward(d.fch, d.gelu, s.fch, 4 * n);
  matmul_backward(d.ln2, dw + p.fcw + (long)l * 4 * C * C, dw + p.fcb + l * 4 * C, d.fch, s.ln2,
                  w + p.fcw + (long)l * 4 * C * C, N, C, 4 * C);
  layernorm_backward(d.middle, dw + p.ln2w + l * C, dw + p.ln2b + l * C, d.ln2, s.middle, w + p.ln2w + l * C,
                     s.mean2, s.rstd2, N, C);
  residual_backward(dx, d.attproj, d.middle, n);
  matmul_backward(d.atty, dw + p.attprojw + (long)l * C * C, dw + p.attprojb + l * C, d.attproj, s.atty,
                  w + p.attprojw + (long)l * C * C, N, C, C);
  attention_backward(d.qkv, d.atty, s.qkv, s.att, B, T, C, NH);
  matmul_backward(d.ln1, dw + p.qkvw + (long)l * 3 * C * C, dw + p.qkvb + l * 3 * C, d.qkv, s.ln1,
                  w + p.qkvw + (long)l * 3 * C * C, N, C, 3 * C);
  layernorm_backward(dx, dw + p.ln1w + l * C, dw + p.ln1b + l * C, d.ln1, x, w + p.ln1w + l * C, s.mean1,
                     s.rstd1, N, C);
}

// Everything that the model computes: x (L + 1, N, C), the blocks, and the ends.
struct Activations {
  float *x, *lnf, *mean, *rstd, *logits, *logsum, *losses, *blocks;
};

static inline long activations_size(int N, int T, int V, int L, int C, int NH) {
  return (L + 2L) * N * C + 4L * N + (long)N * V + L * block_size(N, T, C, NH);
}

static inline Activations activations_at(float *at, int N, int V, int L, int C) {
  long n = (long)N * C;
  Activations s;
  s.x = at, at += (L + 1) * n;
  s.lnf = at, at += n;
  s.mean = at, at += N;
  s.rstd = at, at += N;
  s.logsum = at, at += N;
  s.losses = at, at += N;
  s.logits = at, at += (long)N * V;
  s.blocks = at;
  return s;
}

static inline float model_forward(Activations s, IN w, IN tokens, IN targets, int B, int T, int V, int L, int C,
                                  int NH) {
  int N = B * T;
  long n = (long)N * C;
  Tensors p = tensors(V, T, L, C);
  encoder_forward(s.x, tokens, w + p.wte, w + p.wpe, B, T, C);
  for (int l = 0; l < L; l++) {
    Block block = block_at(s.blocks + l * block_size(N, T, C, NH), N, T, C, NH);
    block_forward(s.x + (l + 1) * n, s.x + l * n, block, w, p, l, B, T, C, NH);
  }
  layernorm_forward(s.lnf, s.mean, s.rstd, s.x + L * n, w + p.lnfw, w + p.lnfb, N, C);
  matmul_forward(s.logits, s.lnf, w + p.wte, 0, N, C, V);
  crossentropy_forward(s.losses, s.logsum, s.logits, targets, N, V);
  float sum = 0.0f;
  for (int i = 0; i < N; i++) sum += s.losses[i];
  return sum / N;
}

static inline void model_backward(OUT dw, Activations s, Activations d, IN w, IN tokens, IN targets, int B, int T,
                                  int V, int L, int C, int NH) {
  int N = B * T;
  long n = (long)N * C;
  Tensors p = tensors(V, T, L, C);
  for (int i = 0; i < N; i++) d.losses[i] = 1.0f / N;
  crossentropy_backward(d.logits, d.losses, s.logits, s.logsum, targets, N, V);
  matmul_backward(d.lnf, dw + p.wte, 0, d.logits, s.lnf, w + p.wte, N, C, V);
  layernorm_backward(d.x + L * n, dw + p.lnfw, dw + p.lnfb, d.lnf, s.x + L * n, w + p.lnfw, s.mean, s.rstd, N, C);
  for (int l = L - 1; l >= 0; l--) {
    long offset = l * block_size(N, T, C, NH);
    Block block = block_at(s.blocks + offset, N, T, C, NH), dblock = block_at(d.blocks + offset, N, T, C, NH);
    block_backward(d.x + l * n, dw, d.x + (l + 1) * n, s.x + l * n, block, dblock, w, p, l, B, T, C, NH);
  }
  encoder_backward(dw + p.wte, dw + p.wpe, d.x, tokens, B, T, C);
}
