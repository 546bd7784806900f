// SPDX-License-Identifier: Apache-2.0
// Reads frames of version 2 (UDP payloads) off a 512-bit AXI-Stream, a word each clock without a pause.
//
// The first word is the frame's header and the group's head, the second begins with the round: no field
// straddles two words, so there is no shifter. Frames that wire::frame::decode and the group's decoders
// would refuse are dropped and counted by reason; others become an event for the LOWI core two clocks
// after their last word. One instance per path writes the batches into buffers (StoreBatch): a round is
// decided when the copies of all paths are in, so one of them is enough to keep.
module fide_rx_parser
#(
  parameter int unsigned Members  = 8,
  parameter int unsigned Path     = 0,     // the path whose copies arrive here
  parameter int unsigned MaxBeats = 16,    // words of a round and its batch
  parameter int unsigned Buffers  = 18,
  parameter bit          StoreBatch = 1'b1,
  parameter bit          IsRequest  = 1'b0 // takes entries for the leader, and nothing else
) (
  input  logic                              clk_i,
  input  logic                              rst_ni,
  input  logic                              clear_i,

  // The first 64 bytes of this member's frames, byte 0 lowest: cluster, key, group and generation.
  input  logic [511:0]                      base_i,
  input  logic [Members-1:0][15:0]          ids_i,
  input  logic [15:0]                       ids_valid_i,
  input  logic [fide_lowi_pkg::RankW-1:0]   me_i,

  input  logic                              s_axis_tvalid_i,
  input  logic [511:0]                      s_axis_tdata_i,
  input  logic [63:0]                       s_axis_tkeep_i,
  input  logic                              s_axis_tlast_i,
  input  logic                              s_axis_tuser_i,  // with tlast: the MAC found the frame bad
  input  logic                              tag_bad_i,       // with tlast: the tag is not that of the key

  // A batch, as it arrives: words behind the first one.
  output logic                              store_valid_o,
  output logic [$clog2(Buffers*MaxBeats)-1:0] store_addr_o,
  output logic [511:0]                      store_data_o,

  // Buffers that are given back.
  input  logic [1:0]                        free_valid_i,
  input  logic [1:0][fide_lowi_pkg::BufW-1:0] free_buffer_i,

  output logic                              ev_valid_o,
  output fide_lowi_pkg::ev_t                ev_o,
  input  logic                              ev_full_i,

  output logic                              drop_valid_o,
  output fide_lowi_pkg::drop_e              drop_o
);

  localparam int unsigned BeatW = $clog2(MaxBeats + 1) + 1;
  localparam int unsigned RankW = fide_lowi_pkg::RankW;
  localparam int unsigned BufW = fide_lowi_pkg::BufW;
  localparam int unsigned IndexW = $clog2(Buffers);
  localparam int unsigned AddrW = $clog2(Buffers * MaxBeats);
  localparam int unsigned RoundAt = fide_wire_pkg::ROUND_AT;

  // Of the first word only what is compared is used.
  logic unused;
  assign unused = ^base_i;

  if (RoundAt != 64 || fide_wire_pkg::BODY_AT != 48) begin : gen_bad_wire
    $fatal(1, "fide_rx_parser: the wire's layout is not that of a 64-byte word");
  end
  if (MaxBeats < 2 || MaxBeats * 64 + 64 > fide_wire_pkg::FRAME_MAX + 63) begin : gen_bad_beats
    $fatal(1, "fide_rx_parser: MaxBeats is 2 to what a frame holds");
  end
  if (Buffers > (1 << BufW)) begin : gen_bad_buffers
    $fatal(1, "fide_rx_parser: too many buffers");
  end

  // Big-endian fields of a word, by the byte at which they begin in it.
  function automatic logic [63:0] be64(input logic [511:0] word, input int unsigned at);
    for (int unsigned i = 0; i < 8; i++) be64[8*(7-i) +: 8] = word[8*(at+i) +: 8];
  endfunction
  function automatic logic [31:0] be32(input logic [511:0] word, input int unsigned at);
    for (int unsigned i = 0; i < 4; i++) be32[8*(3-i) +: 8] = word[8*(at+i) +: 8];
  endfunction
  function automatic logic [15:0] be16(input logic [511:0] word, input int unsigned at);
    be16 = {word[8*at +: 8], word[8*(at+1) +: 8]};
  endfunction

  // Where in a frame we are.
  logic [BeatW-1:0] beat_q;   // of the next word; stays at its end when a frame is too long
  logic [15:0] len_q;
  logic head_bad_q;
  fide_lowi_pkg::drop_e head_why_q;
  logic [7:0] kind_q, type_q;
  logic [RankW-1:0] rank_q;
  logic [63:0] sent_q, round_q, inst_q;
  logic [15:0] entries_q;
  logic [31:0] batch_len_q, value_len_q;
  logic entry_bad_q;
  logic [7:0] entry_kind_q;
  logic [31:0] crc_q;
  logic [63:0] tail_q;        // the last 8 bytes of the last word
  logic done_q, mac_bad_q, tag_bad_q;

  // Payload buffers: which are free, and the one for the frame that is arriving.
  logic [Buffers-1:0] busy_q, busy_d;
  logic [BufW-1:0] next_buffer, buffer_q;
  logic has_buffer, buffer_ok_q;
  always_comb begin
    next_buffer = '0;
    for (int i = int'(Buffers) - 1; i >= 0; i--) if (!busy_q[i]) next_buffer = BufW'(i);
  end
  assign has_buffer = StoreBatch && !(&busy_q);

  logic first, second;
  assign first  = beat_q == '0;
  assign second = beat_q == BeatW'(1);

  // The word's bytes, zero where there are none, and how many there are.
  logic [511:0] word;
  logic [6:0] word_len;
  always_comb begin
    word_len = '0;
    for (int unsigned i = 0; i < 64; i++) begin
      word[8*i +: 8] = s_axis_tkeep_i[i] ? s_axis_tdata_i[8*i +: 8] : 8'd0;
      word_len = word_len + {6'b0, s_axis_tkeep_i[i]};
    end
  end

  // The first word, judged in the order of wire::frame::decode. The tag, which comes between the key and
  // the service, is judged with the last word.
  logic head_bad;
  fide_lowi_pkg::drop_e head_why;
  logic [RankW-1:0] rank;
  logic known;
  logic [15:0] from;
  assign from = be16(word, fide_wire_pkg::FROM_AT);
  always_comb begin
    rank = '0;
    known = 1'b0;
    for (int i = int'(Members) - 1; i >= 0; i--) begin
      if (ids_valid_i[i] && ids_i[i] == from) begin
        rank = RankW'(i);
        known = 1'b1;
      end
    end
  end
  logic [7:0] kind, ltype;
  logic is_copy, is_message;
  assign kind       = word[8*fide_wire_pkg::KIND_AT +: 8];
  assign ltype      = word[8*fide_wire_pkg::TYPE_AT +: 8];
  assign is_copy    = !IsRequest && kind == fide_wire_pkg::KIND_COPY && ltype == fide_wire_pkg::LOWI_ROUND;
  assign is_message = kind == fide_wire_pkg::KIND_MESSAGE &&
                      (IsRequest ? ltype == fide_wire_pkg::LOWI_FORWARD
                                 : ltype == fide_wire_pkg::LOWI_EXIT || ltype == fide_wire_pkg::LOWI_READY);
  always_comb begin
    head_bad = 1'b1;
    head_why = fide_lowi_pkg::DropShort;
    if (word_len < 7'(fide_wire_pkg::BODY_AT)) begin
      head_why = fide_lowi_pkg::DropShort;
    end else if (be16(word, fide_wire_pkg::MAGIC_AT) != fide_wire_pkg::MAGIC) begin
      head_why = fide_lowi_pkg::DropMagic;
    end else if (word[8*fide_wire_pkg::VERSION_FLAGS_AT + 4 +: 4] != fide_wire_pkg::VERSION) begin
      head_why = fide_lowi_pkg::DropVersion;
    end else if (word[8*fide_wire_pkg::CLUSTER_AT +: 32] != base_i[8*fide_wire_pkg::CLUSTER_AT +: 32]) begin
      head_why = fide_lowi_pkg::DropCluster;
    end else if (word[8*fide_wire_pkg::PATH_KEY_AT +: 4] != base_i[8*fide_wire_pkg::PATH_KEY_AT +: 4]) begin
      head_why = fide_lowi_pkg::DropKey;
    end else if (word_len != 7'd64 || !(is_copy || is_message) ||
                 word[8*fide_wire_pkg::CHANNEL_AT +: 8] != fide_wire_pkg::CHANNEL_GROUPS ||
                 word[8*fide_wire_pkg::GROUP_AT +: 32] != base_i[8*fide_wire_pkg::GROUP_AT +: 32] ||
                 word[8*fide_wire_pkg::ENGINE_AT +: 8] != fide_wire_pkg::ENGINE_LOWI) begin
      head_why = fide_lowi_pkg::DropService;
    end else if (word[8*fide_wire_pkg::GENERATION_AT +: 64] != base_i[8*fide_wire_pkg::GENERATION_AT +: 64]) begin
      head_why = fide_lowi_pkg::DropGeneration;
    end else if (!known || (!IsRequest && rank == me_i)) begin
      head_why = fide_lowi_pkg::DropMember;
    end else if (is_copy && word[8*fide_wire_pkg::PATH_KEY_AT + 4 +: 4] != 4'(Path)) begin
      head_why = fide_lowi_pkg::DropPath;
    end else begin
      head_bad = 1'b0;
    end
  end

  // The frame as a whole, a clock after its last word.
  logic has_round, whole, padded, bad;
  fide_lowi_pkg::drop_e why;
  logic [7:0] pad_mask;
  assign has_round = kind_q == fide_wire_pkg::KIND_COPY || IsRequest;
  assign pad_mask  = 8'hff << ((value_len_q[2:0] == 3'd0) ? 4'd8 : {1'b0, value_len_q[2:0]});
  always_comb begin
    padded = 1'b1;
    for (int unsigned i = 0; i < 8; i++) if (pad_mask[i] && tail_q[8*i +: 8] != 8'd0) padded = 1'b0;
  end
  assign whole = len_q == 16'(fide_wire_pkg::BATCH_AT) + batch_len_q[15:0] && batch_len_q[31:16] == '0;
  always_comb begin
    bad = 1'b1;
    why = head_why_q;
    if (mac_bad_q) begin
      why = fide_lowi_pkg::DropMalformed;
    end else if (len_q > 16'(fide_wire_pkg::FRAME_MAX)) begin
      why = fide_lowi_pkg::DropOversize;
    end else if (head_bad_q && 4'(head_why_q) < 4'(fide_lowi_pkg::DropTag)) begin
      why = head_why_q;
    end else if (tag_bad_q) begin
      why = fide_lowi_pkg::DropTag;
    end else if (head_bad_q) begin
      why = head_why_q;
    end else if (!has_round) begin
      bad = len_q != 16'd64;
      why = fide_lowi_pkg::DropMalformed;
    end else if (len_q < 16'(fide_wire_pkg::BATCH_AT) || !whole || entry_bad_q || (IsRequest && entries_q == '0)) begin
      why = fide_lowi_pkg::DropMalformed;
    end else if (entries_q == '0) begin
      bad = batch_len_q != '0;
      why = fide_lowi_pkg::DropMalformed;
    end else if (entries_q > 16'd1 || len_q > 16'(64 + 64 * MaxBeats)) begin
      // Batches of several entries are not for this engine: Config::batch_entries_max is 1.
      why = fide_lowi_pkg::DropTooLarge;
    end else if (entry_kind_q > fide_wire_pkg::ENTRY_KIND_MAX || !padded || value_len_q > 32'(fide_wire_pkg::FRAME_MAX) ||
                 batch_len_q != 32'(fide_wire_pkg::ENTRY_HEAD_LEN) + ((value_len_q + 32'd7) & ~32'd7)) begin
      why = fide_lowi_pkg::DropMalformed;
    end else begin
      bad = StoreBatch && !buffer_ok_q;
      why = fide_lowi_pkg::DropRoom;
    end
  end

  logic accept;
  assign accept       = done_q && !bad && !ev_full_i;
  assign drop_valid_o = done_q && (bad || ev_full_i);
  assign drop_o       = bad ? why : fide_lowi_pkg::DropRoom;
  assign ev_valid_o   = accept;
  always_comb begin
    ev_o = '0;
    ev_o.kind = fide_lowi_pkg::EvCopy;
    if (!has_round) ev_o.kind = type_q == fide_wire_pkg::LOWI_EXIT ? fide_lowi_pkg::EvExit : fide_lowi_pkg::EvReady;
    ev_o.rank = rank_q;
    ev_o.path = fide_lowi_pkg::PathW'(Path);
    ev_o.round = round_q;
    ev_o.inst = inst_q;
    ev_o.sent_ns = sent_q;
    ev_o.digest = crc_q;
    ev_o.has_batch = has_round && entries_q != '0;
    ev_o.barrier = entry_kind_q != fide_wire_pkg::ENTRY_VALUE;
    ev_o.len = fide_lowi_pkg::LenW'(len_q - 16'd64);
    ev_o.buffer = buffer_q;
    ev_o.has_buffer = StoreBatch && ev_o.has_batch;
  end

  // A buffer belongs to the frame that arrives until the core gives it back.
  always_comb begin
    busy_d = busy_q;
    for (int i = 0; i < 2; i++) if (free_valid_i[i]) busy_d[IndexW'(free_buffer_i[i])] = 1'b0;
    if (done_q && buffer_ok_q && !(accept && ev_o.has_buffer)) busy_d[IndexW'(buffer_q)] = 1'b0;
    if (s_axis_tvalid_i && first && has_buffer) busy_d[IndexW'(next_buffer)] = 1'b1;
  end

  assign store_valid_o = StoreBatch && s_axis_tvalid_i && !first && beat_q <= BeatW'(MaxBeats) && buffer_ok_q;
  assign store_addr_o  = AddrW'(buffer_q) * AddrW'(MaxBeats) + AddrW'(beat_q) - 1'b1;
  assign store_data_o  = word;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      beat_q <= '0;
      done_q <= 1'b0;
      busy_q <= '0;
      buffer_ok_q <= 1'b0;
    end else begin
      done_q <= s_axis_tvalid_i && s_axis_tlast_i;
      busy_q <= busy_d;
      if (s_axis_tvalid_i) begin
        if (s_axis_tlast_i) beat_q <= '0;
        else if (beat_q != BeatW'(MaxBeats + 1)) beat_q <= beat_q + 1'b1;
        if (first) buffer_ok_q <= has_buffer;
      end
      if (clear_i) begin
        // What is arriving keeps its buffer; the core has forgotten all others.
        busy_q <= '0;
        if (!first || (s_axis_tvalid_i && !s_axis_tlast_i)) busy_q <= busy_d & (Buffers'(1) << (first ? next_buffer : buffer_q));
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (s_axis_tvalid_i) begin
      mac_bad_q <= s_axis_tlast_i && s_axis_tuser_i;
      tag_bad_q <= tag_bad_i;
      len_q <= (first ? 16'd0 : len_q) + ((len_q > 16'h7fff && !first) ? 16'd0 : 16'(word_len));
      if (first) begin
        head_bad_q <= head_bad;
        head_why_q <= head_why;
        kind_q <= kind;
        type_q <= ltype;
        rank_q <= rank;
        sent_q <= be64(word, fide_wire_pkg::SENT_NS_AT);
        buffer_q <= next_buffer;
        entries_q <= '0;
        batch_len_q <= '0;
        crc_q <= '1;
      end
      if (second) begin
        round_q <= be64(word, fide_wire_pkg::ROUND_AT - RoundAt);
        inst_q <= be64(word, fide_wire_pkg::INSTANCE_AT - RoundAt);
        entries_q <= be16(word, fide_wire_pkg::ENTRIES_AT - RoundAt);
        batch_len_q <= be32(word, fide_wire_pkg::BATCH_LEN_AT - RoundAt);
        entry_kind_q <= word[8*(fide_wire_pkg::ENTRY_KIND_AT - RoundAt) +: 8];
        value_len_q <= be32(word, fide_wire_pkg::VALUE_LEN_AT - RoundAt);
        entry_bad_q <= be16(word, fide_wire_pkg::ROUND_ZERO_AT - RoundAt) != '0 ||
                       (be16(word, fide_wire_pkg::ENTRIES_AT - RoundAt) != '0 &&
                        (word[8*(fide_wire_pkg::ENTRY_ZERO_AT - RoundAt) +: 8] != '0 ||
                         be64(word, fide_wire_pkg::ENTRY_NUMBER_AT - RoundAt) == '0));
      end
      if (!first) begin
        for (int unsigned i = 0; i < 32; i++) crc_q[i] <= ^({crc_q, word} & fide_crc_pkg::Table[fide_crc_pkg::InW*i +: fide_crc_pkg::InW]);
      end
      // Batches are whole 8-byte words.
      for (int unsigned i = 0; i < 8; i++) if (word_len[6:3] == 4'(i + 1)) tail_q <= word[64*i +: 64];
    end
  end

`include "fide_assert.svh"
  `FIDE_ASSERT(KeepIsDense_A, !s_axis_tvalid_i || (s_axis_tkeep_i & (s_axis_tkeep_i + 64'd1)) == '0)
  `FIDE_ASSERT(KeepIsFull_A, !(s_axis_tvalid_i && !s_axis_tlast_i) || (&s_axis_tkeep_i))
  `FIDE_ASSERT(BufferIsOwned_A, !(accept && ev_o.has_buffer) || busy_q[IndexW'(buffer_q)])

endmodule
