// SPDX-License-Identifier: Apache-2.0
// SipHash-2-4 of a frame, as wire::mac::Key::frame_tag has it: over the header and the body, without the
// tag between them. Takes the words of the stream, and hashes Words of their 64-bit words each clock: two
// rounds for each. Frames whose length is no multiple of 8 bytes are refused by the parser, so what
// remains behind the last 64-bit word is always nothing but the length.
module fide_siphash
#(
  parameter int unsigned Words = 1   // 1, 2, 4 or 8
) (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [127:0] key_i,       // byte 0 lowest

  input  logic         valid_i,
  output logic         ready_o,
  input  logic [511:0] data_i,      // byte 0 lowest
  input  logic [3:0]   words_i,     // 64-bit words in it, 0 to 8
  input  logic         first_i,     // the frame's first word, in which the tag is
  input  logic         last_i,

  output logic         valid_o,     // until the next frame begins
  output logic [63:0]  tag_o        // as it lies in the frame: first byte lowest
);

  if (Words != 1 && Words != 2 && Words != 4 && Words != 8) begin : gen_bad_words
    $fatal(1, "fide_siphash: Words is 1, 2, 4 or 8");
  end
  if (fide_wire_pkg::TAG_AT != 40 || fide_wire_pkg::TAG_LEN != 8) begin : gen_bad_tag
    $fatal(1, "fide_siphash: the tag is the sixth 64-bit word of a frame");
  end

  localparam logic [255:0] Init = {64'h7465646279746573, 64'h6c7967656e657261, 64'h646f72616e646f6d, 64'h736f6d6570736575};

  typedef enum logic [2:0] { StIdle, StRun, StLength, StFinal0, StFinal1, StDone } st_e;
  st_e state_q;
  logic [255:0] v_q;
  logic [511:0] rest_q, fresh;
  logic [3:0] left_q, count;
  logic last_q;
  logic [4:0] hashed_q;   // 64-bit words so far, modulo 32: the length's low byte is 8 times as much

  // Without the tag.
  assign fresh = first_i ? {64'd0, data_i[511:384], data_i[319:0]} : data_i;
  assign count = (first_i && words_i > 4'd5) ? words_i - 4'd1 : words_i;

  // The rounds of a clock, one word behind the other; the first of them also serve the length and the end.
  // `after` is the state with what follows the rounds of its word.
  logic [Words-1:0][255:0] rounds_in, rounds_out /*verilator split_var*/, after /*verilator split_var*/;
  logic [Words-1:0][63:0] word;
  always_comb begin
    for (int unsigned i = 0; i < Words; i++) word[i] = rest_q[64*i +: 64];
    if (state_q == StLength) word[0] = {hashed_q, 3'd0, 56'd0};
    if (state_q == StFinal0 || state_q == StFinal1) word[0] = '0;
  end
  for (genvar i = 0; i < int'(Words); i++) begin : gen_rounds
    logic [255:0] from;
    if (i == 0) begin : gen_first
      assign from = v_q;
    end else begin : gen_next
      assign from = after[i-1];
    end
    assign rounds_in[i] = from ^ {word[i], 192'd0};
    fide_sip_rounds u_rounds (.state_i(rounds_in[i]), .state_o(rounds_out[i]));
    // Behind the frame's last word the state stays as it is.
    assign after[i] = (state_q == StRun && 4'(i) >= left_q) ? from : rounds_out[i] ^ {192'd0, word[i]};
  end

  logic emptied;
  assign emptied = left_q <= 4'(Words);
  assign ready_o = state_q == StIdle || state_q == StDone || (state_q == StRun && emptied && !last_q);

  logic [63:0] sum;
  assign sum = v_q[63:0] ^ v_q[127:64] ^ v_q[191:128] ^ v_q[255:192];
  // The tag is big-endian on the wire.
  for (genvar i = 0; i < 8; i++) begin : gen_tag
    assign tag_o[8*i +: 8] = sum[8*(7-i) +: 8];
  end
  assign valid_o = state_q == StDone;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      state_q <= StIdle;
    end else begin
      unique case (state_q)
        StRun: if (emptied && last_q) state_q <= StLength;
        StLength: state_q <= StFinal0;
        StFinal0: state_q <= StFinal1;
        StFinal1: state_q <= StDone;
        default: ;
      endcase
      if (valid_i && ready_o) state_q <= StRun;
    end
  end

  always_ff @(posedge clk_i) begin
    unique case (state_q)
      StRun: begin
        v_q <= after[Words-1];
        rest_q <= rest_q >> (64 * Words);
        left_q <= emptied ? '0 : left_q - 4'(Words);
      end
      StLength: v_q <= after[0] ^ {64'd0, 64'hff, 128'd0};
      StFinal0, StFinal1: v_q <= after[0];
      default: ;
    endcase
    if (valid_i && ready_o) begin
      rest_q <= fresh;
      left_q <= count;
      last_q <= last_i;
      hashed_q <= (first_i ? 5'd0 : hashed_q) + 5'(count);
      if (first_i) v_q <= Init ^ {key_i, key_i};
    end
  end

`ifdef FIDE_SIP_FV
`include "fide_siphash_fv.svh"
`endif

endmodule
